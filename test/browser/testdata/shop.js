// What a shop does with the component, and what the tests want to know of it.
const card = document.querySelector('card-entry');
const events = [];
const messages = [];

for (const type of ['ready', 'change', 'success', 'error', 'challenge']) {
  card.addEventListener(type, ({ detail }) => events.push({ type, detail }));
}
addEventListener('message', ({ origin, data }) => messages.push({ origin, data }));

// A rejection is nobody's business here: the event error tells.
document.querySelector('#pay').addEventListener('submit', (e) => {
  e.preventDefault();
  card.submit();
});
