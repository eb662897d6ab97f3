// The reference of the sandbox. "Try it" calls the REST API below data-api, where a
// cookie stands for the API key.

const api = document.documentElement.dataset.api;

// el makes an element. Strings become text, never markup.
function el(tag, props, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children.filter((c) => c != null));
  return e;
}

// target is the address that a form asks for, and the headers it sends.
function target(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const field of form.querySelectorAll("[data-in]")) {
    const value = field.value.trim();
    if (field.dataset.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(value));
    else if (!value) continue;
    else if (field.dataset.in === "query") query.append(field.name, value);
    else headers[field.name] = value;
  }
  return { path: path + (query.size ? "?" + query : ""), headers };
}

async function send(form) {
  const { path, headers } = target(form);
  const body = form.elements.body?.value;
  if (body) headers["content-type"] = "application/json";
  const response = await fetch(api + path, {
    method: form.dataset.method,
    headers,
    body: body || undefined,
    signal: AbortSignal.timeout(30_000),
  });
  const json = response.headers.get("content-type") === "application/json";
  const content = json ? await response.json() : await response.blob();
  return { path, response, json, content };
}

// remember puts the ids of an answer into the forms that want one and have none.
function remember(path, answer) {
  const kind = path.split(/[/?]/)[1];
  const latest = answer?.data?.[0]?.id ?? answer?.id;
  const sets = path.endsWith("/payment-data") ? [] : [[`/${kind}/{`, latest]];
  sets.push(["/sessions/{", answer?.session_id]);
  for (const [prefix, id] of sets) {
    if (typeof id !== "string") continue;
    for (const form of document.querySelectorAll(`form[data-path^="${prefix}"]`)) {
      const field = form.querySelector("[data-in=path]");
      if (!field.value) field.value = id;
    }
  }
}

function show(form, { path, response, json, content }) {
  const lines = ["x-request-id", "retry-after", "idempotency-replayed", "allow"].flatMap((name) =>
    response.headers.has(name) ? [`${name}: ${response.headers.get(name)}`] : []);
  const text = json ? JSON.stringify(content, null, 2) : content.size ? `${content.type}, ${content.size} bytes` : "";
  form.querySelector(".outcome").replaceChildren(
    el("p", {},
      el("span", { className: "pill " + (response.status < 400 ? "good" : "bad") }, String(response.status)), " ",
      el("code", {}, `${form.dataset.method} ${path}`)),
    el("p", { className: "hint" }, lines.join(" · ")),
    text ? el("pre", { tabIndex: 0 }, el("code", {}, text)) : "");
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  event.preventDefault();
  const empty = form.querySelector(":invalid");
  if (empty) return empty.focus();

  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const result = await send(form);
    show(form, result);
    if (result.response.ok && result.json) remember(result.path, result.content);
    if (result.response.status === 401) {
      const trouble = document.getElementById("trouble");
      trouble.textContent = result.content.message;
      trouble.hidden = false;
    }
  } catch {
    form.querySelector(".outcome").replaceChildren(el("p", { className: "status bad" }, "The sandbox is not responding. Is it still running?"));
  } finally {
    button.disabled = false;
  }
});

// On a phone the contents are above the guide.
if (matchMedia("(width < 62rem)").matches) {
  for (const d of document.querySelectorAll("#contents details")) d.open = false;
}
