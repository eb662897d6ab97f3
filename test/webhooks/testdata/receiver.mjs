// A receiver of webhooks, written with the public library of Standard Webhooks. It
// prints its address, takes secrets on standard input, a line each, and prints what it
// has verified: the event, the sequence, the state of the network token, and whether a
// body that was changed, and one that was signed for another id, are refused.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { Webhook } from 'standardwebhooks';

let webhooks = [];
createInterface({ input: process.stdin }).on('line', (secret) => {
  webhooks = [new Webhook(secret)];
  console.log('secret');
});

const refuses = (webhook, body, headers) => {
  try {
    webhook.verify(body, headers);
    return false;
  } catch {
    return true;
  }
};

const server = createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const body = Buffer.concat(chunks).toString();
    const { headers } = request;
    try {
      for (const webhook of webhooks) {
        const event = webhook.verify(body, headers);
        const forged = refuses(webhook, body + ' ', headers) && refuses(webhook, body, { ...headers, 'webhook-id': 'other' });
        console.log(JSON.stringify({
          id: headers['webhook-id'], same: event.id === headers['webhook-id'], type: event.event_type, reason: event.reason,
          sequence: event.sequence, token: event.token?.id, status: event.token?.network_token_status, forged,
        }));
      }
      response.writeHead(204).end();
    } catch (error) {
      console.log('refused: ' + error.message);
      response.writeHead(400).end();
    }
  });
});
server.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/hook`));
