// A frame beside the component's, of an origin that may embed it: it connects to the
// component's frame and makes up messages to the page, before the element does and after.
let left = 200;
(function knock() {
  const frames = parent.roots.map((root) => root.querySelector('iframe')?.contentWindow).filter(Boolean);
  for (const target of [parent, ...frames]) {
    for (const type of ['cardvault:connect', 'cardvault:success', 'ready', 'success']) {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = ({ data }) => parent.postMessage({ leaked: data }, '*');
      const id = '00000000-0000-4000-8000-000000000000';
      target.postMessage({ type, session: id, sessionId: id, session_id: id, token_id: id, detail: { token_id: id } }, '*', [port2]);
    }
  }
  if (--left) setTimeout(knock);
  else parent.postMessage('neighbour is done', '*');
})();
