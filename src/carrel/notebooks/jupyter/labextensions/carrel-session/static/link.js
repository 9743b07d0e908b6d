// The way to the session's own server extension: requests, and a websocket that comes back by itself.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 5000;

export const makeLink = lab => {
  const settings = lab.ServerConnection.makeSettings();
  const base = lab.URLExt.join(settings.baseUrl, 'carrel');

  const request = async (path, options) => {
    const answer = await lab.ServerConnection.makeRequest(`${base}/${path}`, options || {}, settings);
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) {
      throw new Error([body.message, body.remedy].filter(Boolean).join(' ') || `The session answered ${answer.status}.`);
    }
    return body;
  };

  // Calls `heard` with each message, and with null whenever the connection is lost; `returned` when it is there again.
  const events = (heard, returned) => {
    let pause = FIRST_PAUSE;
    let lost = false;
    const connect = () => {
      const socket = new WebSocket(lab.URLExt.join(settings.wsUrl, 'carrel', 'events'));
      socket.onopen = () => {
        pause = FIRST_PAUSE;
        if (lost) {
          lost = false;
          returned();
        }
      };
      socket.onmessage = event => heard(JSON.parse(event.data));
      socket.onclose = () => {
        lost = true;
        heard(null);
        setTimeout(connect, pause);
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      };
    };
    connect();
  };

  return { request, events };
};
