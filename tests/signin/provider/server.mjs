// A real provider of OpenID Connect on the loopback, for the tests: npm's oidc-provider, with people, and with buttons under /-/
// that rotate its keys, move its clock and change its people. It ends when its standard input does.
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const SECRET = 'a secret of the test: %+ &';
const real = Date.now;
let shift = 0;
Date.now = () => real() + shift;

const people = {
  ada: { sub: 'sub-ada', preferred_username: 'ada', email: 'ada@example.org', email_verified: true, groups: [] },
  bob: { sub: 'sub-bob', preferred_username: 'bob', email: 'bob@example.org', email_verified: true, groups: [] },
  grace: { sub: 'sub-grace', preferred_username: 'grace', email: 'grace@example.org', email_verified: false, groups: [] },
};
const chosen = { redirect_uris: ['http://127.0.0.1:1/none'], userinfo: true };
const seen = {};
let keys = newKeys();
let handler;

function key(type, options, alg) {
  const jwk = generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' });
  return { ...jwk, kid: randomUUID(), use: 'sig', alg };
}

function newKeys() {
  return [
    key('rsa', { modulusLength: 2048 }, 'RS256'),
    key('rsa', { modulusLength: 2048 }, 'PS256'),
    key('ec', { namedCurve: 'P-256' }, 'ES256'),
    key('ed25519', {}, 'Ed25519'),
    key('ed25519', {}, 'EdDSA'),
  ];
}

function client(id, more) {
  return {
    client_id: id,
    client_secret: SECRET,
    redirect_uris: chosen.redirect_uris,
    grant_types: ['authorization_code'],
    response_types: ['code'],
    ...more,
  };
}

function build(issuer) {
  const provider = new Provider(issuer, {
    clients: [
      client('carrel'),
      client('carrel-post', { token_endpoint_auth_method: 'client_secret_post' }),
      client('carrel-public', { token_endpoint_auth_method: 'none', client_secret: undefined }),
      ...['PS256', 'ES256', 'Ed25519', 'EdDSA'].map((alg) => client(`carrel-${alg}`, { id_token_signed_response_alg: alg })),
    ],
    jwks: { keys },
    cookies: { keys: ['a key of the test'] },
    claims: {
      openid: ['sub'],
      profile: ['preferred_username', 'name'],
      email: ['email', 'email_verified'],
      groups: ['groups'],
    },
    // As the standard has it, and as many providers have it: claims in userinfo alone, or in the ID token too.
    conformIdTokenClaims: chosen.userinfo,
    features: { devInteractions: { enabled: false }, deviceFlow: { enabled: true } },
    enabledJWA: { idTokenSigningAlgValues: ['RS256', 'PS256', 'ES256', 'Ed25519', 'EdDSA'] },
    pkce: { required: () => true },
    ttl: { IdToken: 30, AccessToken: 30, AuthorizationCode: 60, Interaction: 600, Session: 600, Grant: 600 },
    interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_context, sub) => {
      const found = Object.values(people).find((one) => one.sub === sub);
      return found && { accountId: sub, claims: () => found };
    },
    loadExistingGrant: async (context) => {
      const grant = new provider.Grant({ clientId: context.oidc.client.clientId, accountId: context.oidc.session.accountId });
      grant.addOIDCScope('openid profile email groups');
      await grant.save();
      return grant;
    },
  });
  const serve = provider.callback();
  return async (request, response) => {
    const uid = /^\/interaction\/([A-Za-z0-9_-]+)$/.exec(request.url)?.[1];
    if (!uid) return serve(request, response);
    if (request.method === 'GET') {
      response.setHeader('content-type', 'text/html');
      return response.end(`<!doctype html><title>Institute</title><h1>Institute</h1><form method="post" action="/interaction/${uid}">
        <label>Name <input name="login"></label> <button>Go on</button> <button name="deny" value="1">Break off</button></form>`);
    }
    const form = new URLSearchParams(await body(request));
    const person = people[form.get('login')];
    const result = form.get('deny') || !person
      ? { error: 'access_denied', error_description: 'the person broke off <b>"x"</b>' }
      : { login: { accountId: person.sub, remember: false } };
    return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  };
}

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

const server = createServer(async (request, response) => {
  try {
    const issuer = `http://127.0.0.1:${server.address().port}`;
    if (request.method === 'POST' && request.url.startsWith('/-/')) {
      const asked = JSON.parse((await body(request)) || '{}');
      if (request.url === '/-/rotate') keys = newKeys();
      if (request.url === '/-/shift') shift = 1000 * asked.seconds;
      if (request.url === '/-/people') Object.assign(people, asked);
      if (request.url === '/-/choose') Object.assign(chosen, asked);
      if (request.url !== '/-/seen') handler = build(issuer);
      return response.end(JSON.stringify(seen));
    }
    const path = new URL(request.url, issuer).pathname;
    seen[path] = (seen[path] ?? 0) + 1;
    await handler(request, response);
  } catch (error) {
    console.error(error);
    response.statusCode = 500;
    response.end();
  }
});

server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  handler = build(issuer);
  console.log(JSON.stringify({ issuer, secret: SECRET }));
});
process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
