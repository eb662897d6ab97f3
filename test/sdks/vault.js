// forwarding returns a fetch whose requests are sent by the vault, with the card of a token.
export function forwarding(vault, key, token) {
  return async (url, init) => {
    const answer = await fetch(vault + "/forward", {
      method: "POST",
      headers: { "x-api-key": key, "content-type": "application/json" },
      body: JSON.stringify({
        token_id: token,
        request: { method: init.method, url: String(url), headers: Object.fromEntries(new Headers(init.headers)), body: init.body },
      }),
    });
    const a = await answer.json();
    if (!answer.ok) {
      throw new Error(a.classifier + ": " + a.message);
    }
    const body = a.body_encoding === "base64" ? Buffer.from(a.body, "base64") : a.body;
    return new Response(body, { status: a.status_code, headers: a.headers });
  };
}
