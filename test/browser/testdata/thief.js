// A page in place of the frame: it takes what it is given, and tells what it was told.
addEventListener('message', ({ data, ports: [port] }) => {
  parent.postMessage({ leaked: data }, '*');
  if (!port) return;
  port.onmessage = ({ data }) => parent.postMessage({ leaked: data }, '*');
  port.postMessage({ type: 'connected' });
});
