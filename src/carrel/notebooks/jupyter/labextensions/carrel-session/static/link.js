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

  // A websocket that comes back until the returned function is called. `lost` is called whenever the connection is lost.
  const connect = (path, opened, heard, lost) => {
    let pause = FIRST_PAUSE;
    let socket = null;
    let timer = null;
    const open = () => {
      socket = new WebSocket(lab.URLExt.join(settings.wsUrl, 'carrel', path));
      socket.onopen = () => {
        pause = FIRST_PAUSE;
        opened();
      };
      socket.onmessage = event => heard(JSON.parse(event.data));
      socket.onclose = () => {
        lost();
        timer = setTimeout(open, pause);
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      };
    };
    open();
    return () => {
      clearTimeout(timer);
      socket.onclose = null;
      socket.close();
    };
  };

  // Calls `heard` with each message, and with null whenever the connection is lost; `returned` when it is there again.
  const events = (heard, returned) => {
    let away = false;
    const opened = () => {
      if (away) {
        away = false;
        returned();
      }
    };
    connect('events', opened, heard, () => {
      away = true;
      heard(null);
    });
  };

  // Calls `heard` with each message until it returns false, or until the returned function is called.
  const follow = (path, heard) => {
    const end = connect(path, () => {}, message => heard(message) || end(), () => {});
    return end;
  };

  return { request, events, follow };
};
