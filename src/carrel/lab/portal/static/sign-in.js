// Invitations and passkeys. Without this script a password, a link and a token still sign in.
"use strict";

// The code of an invitation comes in the fragment of its link, which is sent to nobody, and goes on in the body of a form.
const invitation = document.querySelector("form[data-invitation]");

function openInvitation() {
  if (location.hash.length < 2) return;
  invitation.elements.code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname); // neither the history nor a bookmark keeps it
  invitation.requestSubmit();
}

if (invitation) {
  openInvitation();
  addEventListener("hashchange", openInvitation); // the link was opened where this page is already
}

const toBytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (sign) => sign.charCodeAt(0));
const toText = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

async function ask(form) {
  const body = new URLSearchParams(new FormData(form));
  const answer = await fetch(form.dataset.options, { method: "POST", body, headers: { Accept: "application/json" } });
  const options = await answer.json();
  if (!answer.ok) throw new Error([options.detail, options.remedy].filter(Boolean).join(" "));
  options.challenge = toBytes(options.challenge);
  if (options.user) options.user.id = toBytes(options.user.id);
  for (const one of [...(options.allowCredentials || []), ...(options.excludeCredentials || [])]) one.id = toBytes(one.id);
  return options;
}

// The browser's answer as JSON: every buffer as base64url.
function told(credential) {
  const response = {};
  for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"])
    if (credential.response[name]) response[name] = toText(credential.response[name]);
  return JSON.stringify({ id: credential.id, rawId: toText(credential.rawId), type: credential.type, response });
}

const WORDS = {
  NotAllowedError: "It was not confirmed, or took too long. Try again.",
  InvalidStateError: "This authenticator has a passkey for you here already.",
};

for (const form of document.querySelectorAll("form[data-passkey]")) {
  const here = location.origin === form.dataset.origin && window.PublicKeyCredential;
  form.hidden = !here;
  const elsewhere = form.nextElementSibling;
  if (elsewhere?.matches("[data-elsewhere]")) elsewhere.hidden = Boolean(here) || location.origin === form.dataset.origin;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const note = form.querySelector("[data-note]");
    note.textContent = "";
    try {
      const publicKey = await ask(form);
      const made = form.dataset.passkey === "create";
      const credential = await navigator.credentials[made ? "create" : "get"]({ publicKey });
      form.elements.answer.value = told(credential);
      form.submit();
    } catch (error) {
      note.textContent = WORDS[error.name] || error.message;
    }
  });
}
