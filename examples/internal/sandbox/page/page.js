// The page of the sandbox. It calls the REST API below /sandbox/api, where a
// cookie stands for the API key, and two things more: /sandbox/live and /sandbox/open.

const pageSize = 10; // tokens
const recordPage = 5; // payment data of a token
const mostCalls = 50;
const mostEvents = 200;

const $ = (id) => document.getElementById(id);

// el makes an element. Strings become text, never markup.
function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name in e) e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c != null));
  return e;
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function time(instant, format = clock) {
  return el("time", { dateTime: instant, title: calendar.format(new Date(instant)) }, format.format(new Date(instant)));
}

function money(amount, currency) {
  const format = new Intl.NumberFormat(undefined, { style: "currency", currency });
  return format.format(amount / 10 ** format.resolvedOptions().maximumFractionDigits);
}

const expiry = (x) => String(x.expiry_month).padStart(2, "0") + "/" + x.expiry_year;
const spaced = (digits) => digits.replace(/(.{4})(?=.)/g, "$1 ");
const words = (name) => name.replaceAll("_", " ");

const status = () => el("p", { className: "status", role: "status" });

function say(where, text, bad = false) {
  if (where.textContent !== text) where.textContent = text; // it is read aloud again otherwise
  where.classList.toggle("bad", bad);
}

// A Refusal is an answer other than success, or none. Its message is for people.
class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function request(method, path, body) {
  let response, answer;
  try {
    response = await fetch(path, {
      method,
      headers: body ? { "content-type": "application/json" } : {},
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(30_000),
    });
    const text = await response.text();
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new Refusal("The sandbox is not responding. Is it still running?");
  }
  if (response.status === 401) reloadNeeded(answer.message);
  return { status: response.status, answer };
}

const refusal = ({ status, answer }) => new Refusal(answer?.message ?? `The sandbox responded with ${status}.`, status);

// read gets what is not worth a line under Calls.
async function read(path) {
  const result = await request("GET", path);
  if (result.status !== 200) throw refusal(result);
  return result.answer;
}

// call makes a call of the REST API and shows it.
async function call(method, path, body) {
  const result = await request(method, "/sandbox/api" + path, body);
  showCall(method, path, body, result);
  if (result.status >= 400) throw refusal(result);
  return result.answer;
}

let stale = false;

function reloadNeeded(message) {
  if (stale) return;
  stale = true;
  const again = el("button", { type: "button", id: "reload" }, "Reload");
  again.addEventListener("click", () => location.reload());
  $("trouble").replaceChildren(message, " ", again);
  $("trouble").hidden = false;
}

// Calls and events

function prepend(list, item, most) {
  list.prepend(item);
  while (list.children.length > most) list.lastChild.remove();
}

function showCall(method, path, body, { status, answer }) {
  const url = document.documentElement.dataset.baseUrl + path;
  let line = `curl -s ${method === "GET" ? "" : `-X ${method} `}'${url}' \\\n  -H "x-api-key: $KEY"`;
  if (body) line += ` \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  $("no-calls").hidden = true;
  prepend($("call-list"), el("li", {},
    el("details", {},
      el("summary", {},
        time(new Date().toISOString()), " ",
        el("code", {}, el("b", {}, method), " ", path), " ",
        el("span", { className: "pill " + (status < 400 ? "good" : "bad") }, String(status))),
      el("pre", {}, el("code", {}, line)),
      answer ? el("pre", {}, el("code", {}, JSON.stringify(answer, null, 2))) : null)), mostCalls);
}

function showEvent(e) {
  $("no-events").hidden = true;
  prepend($("event-list"), el("li", {},
    time(e.created_at), " ",
    el("code", {}, el("b", {}, e.event_type)), " ",
    el("span", {}, words(e.reason)), " ",
    el("span", { className: "mono quiet", title: e.token_id }, e.masked_account_number ?? e.token_id.slice(0, 8) + "…"), " ",
    e.network_token_status ? pill(e.network_token_status) : null), mostEvents);
}

function pill(status) {
  const tone = { active: "good", pending: "busy", failed: "bad", deleted: "bad", invalid: "bad", inactive: "warn", replaced_by_scheme: "warn" };
  return el("span", { className: "pill " + (tone[status] ?? "") }, words(status));
}

// attempt does what a button is for, once at a time, and says how it went.
async function attempt(button, status, run, after) {
  if (button.ariaDisabled === "true") return;
  button.ariaDisabled = "true"; // disabled would lose the focus
  say(status, "");
  try {
    say(status, (await run()) ?? "");
    await after();
  } catch (e) {
    say(status, e.message, true);
  } finally {
    button.ariaDisabled = null;
  }
}

// Tokens

const shown = new Map(); // by id
let page = 1;
let latestEvent = 0;
let turn = Promise.resolve();

// refresh brings the page up to date. What is called meanwhile waits its turn.
function refresh() {
  return (turn = turn.then(look, look));
}

async function look() {
  const list = await read(`/sandbox/api/tokens?limit=${pageSize}&page=${page}`);
  const { total_items: total, total_pages: pages } = list.pagination;
  if (page > 1 && page > pages) {
    page = Math.max(pages, 1);
    return look();
  }
  const live = await read(`/sandbox/live?after=${latestEvent}` + list.data.map((t) => "&token=" + t.id).join(""));
  for (const e of live.events) {
    latestEvent = Math.max(latestEvent, e.number);
    showEvent(e);
  }
  say($("token-count"), total ? String(total) : "");
  say($("token-page"), `${page} of ${pages}`);
  $("no-tokens").hidden = total > 0;
  $("token-pages").hidden = pages < 2;
  $("newer").disabled = page <= 1;
  $("older").disabled = page >= pages;
  settle($("token-list"), shown, list.data, (id) => new Row(id), $("tokens-title"), live.security_codes);
}

// settle shows things in their order in a list, and touches only what has changed: the
// focus, and what is being typed, stays where it is. A focus that goes with its thing
// goes to another element. rows has what is shown, by id, and more has more of a thing.
function settle(list, rows, things, make, otherwise, more = {}) {
  const keep = new Set(things.map((t) => t.id));
  for (const [id, row] of rows) {
    if (keep.has(id)) continue;
    if (row.item.contains(document.activeElement)) otherwise.focus();
    row.item.remove();
    rows.delete(id);
  }
  let next = list.firstChild;
  for (const t of things) {
    let row = rows.get(t.id);
    if (!row) rows.set(t.id, (row = make(t.id)));
    const state = JSON.stringify([t, more[t.id]]);
    if (state !== row.state) row.update(t, more[t.id]);
    row.state = state;
    if (row.item === next) next = next.nextSibling;
    else list.insertBefore(row.item, next);
  }
}

// A Row is a token of the list, with all that can be done to it.
class Row {
  constructor(id) {
    this.id = id;
    this.art = el("span", { className: "art" });
    this.head = el("span", { className: "head" });
    this.why = el("span", { className: "why quiet" });
    this.details = el("details", { name: "tokens" },
      el("summary", {}, this.art, this.head, this.why));
    this.item = el("li", { id: "token-" + id, className: "token" }, this.details);
    this.details.addEventListener("toggle", () => {
      if (!this.details.open) return;
      if (!this.body) this.build();
      this.records.load(1);
    });
  }

  update(token, codeUntil) {
    const before = this.token;
    this.token = token;
    this.codeUntil = codeUntil;
    if (before && before.network_token_status !== token.network_token_status) {
      say($("announcement"), `The network token of ${token.masked_account_number} is ${words(token.network_token_status)}.`);
    }
    if (!before || before.card_art_url !== token.card_art_url) {
      // The path alone: the page may be loaded under another name of the host.
      this.art.replaceChildren(...(token.card_art_url
        ? [el("img", { src: new URL(token.card_art_url).pathname, alt: "", width: 64, height: 40, loading: "lazy" })] : []));
    }
    const reason = token.network_token_status_reason;
    this.head.replaceChildren(
      el("span", { className: "mono number" }, token.masked_account_number), " ",
      el("span", { className: "quiet" }, `${token.scheme} · ${expiry(token)}`), " ",
      el("span", { className: "pills" },
        token.status === "invalid" ? pill("invalid") : null, " ",
        token.account_number_stale ? pill("replaced_by_scheme") : null, " ",
        pill(token.network_token_status), " ",
        codeUntil ? el("span", { className: "pill", title: "until " + clock.format(new Date(codeUntil)) }, "code available") : null));
    say(this.why, reason ? reason.message : token.account_number_stale ? "The scheme has replaced the card number. The vault has the old one." : "");
    if (this.body) this.showFacts();
  }

  showFacts() {
    const t = this.token;
    const { method } = t.authentication_data;
    const reason = t.network_token_status_reason;
    const facts = [
      ["Token", copyable(t.id)],
      ["Stored", time(t.created_at, calendar)],
      ["Changed", time(t.updated_at, calendar)],
      t.expires_at ? ["Expires", time(t.expires_at, calendar)] : null,
      t.cardholder_name ? ["Name", t.cardholder_name] : null,
      t.invalidated_at ? ["Card", el("span", {}, "invalidated ", time(t.invalidated_at, calendar))] : null,
      ["Network token", words(t.network_token_status)],
      reason ? ["Reason", el("span", {}, el("code", {}, reason.code),
        ` (${reason.source}${reason.scheme_code ? " code " + reason.scheme_code : ""}). ${reason.message}`)] : null,
      t.account_number_stale ? ["Card number", "replaced by the scheme; the vault has the old one"] : null,
      ["Identification", t.identity_and_verification + (method ? `: ${words(method)}, status ${t.authentication_data.status}, ECI ${t.authentication_data.eci}` : "")],
      ["Device binding", t.supports_device_binding ? "supported" : "not supported"],
      ["Security code", this.codeUntil ? el("span", {}, "available until ", time(this.codeUntil)) : "not available"],
    ];
    this.facts.replaceChildren(...facts.filter(Boolean).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }

  // button makes a button that does something to this token and says how it went.
  button(action, label, done, run, className = "") {
    const b = el("button", { type: "button", className }, label);
    b.dataset.action = action;
    b.addEventListener("click", () => this.act(b, done, run));
    return b;
  }

  async act(button, done, run) {
    const status = button.closest("section").querySelector(".status");
    await attempt(button, status, async () => (await run()) ?? done, refresh);
  }

  build() {
    const path = "/tokens/" + this.id;
    const simulate = (action, label, done) =>
      this.button(action, label, done, () => call("POST", "/simulator" + path + "/" + action));
    const report = (outcome, label) =>
      this.button("report-" + outcome, label, "The account updater reports it: at once, or when the card is first submitted, within three minutes.",
        () => call("POST", "/simulator" + path + "/report/" + outcome));
    this.facts = el("dl", { className: "facts" });
    this.records = new Records(this);
    this.body = el("div", { className: "body" },
      this.facts,
      el("section", {},
        el("h3", {}, "Payment data"),
        this.records.form, this.records.status, this.records.list, this.records.pages),
      el("section", {},
        el("h3", {}, "Network token"),
        el("div", { className: "row" },
          this.button("provisions", "Request a network token", "", async () => {
            const t = await call("POST", path + "/provisions");
            return `The network token is ${words(t.network_token_status)}.`;
          })),
        el("h4", {}, "Simulate at the scheme"),
        el("div", { className: "row" },
          simulate("suspend", "Suspend", "The issuer has suspended the network token."),
          simulate("resume", "Resume", "The issuer has resumed the network token."),
          simulate("replace", "Replace number", "The card has a new number."),
          simulate("renew", "Renew expiry", "The card has a new expiry date."),
          simulate("delete", "Delete network token", "The issuer has deleted the network token."),
          simulate("invalidate", "Invalidate card", "The scheme has invalidated the card.")),
        status()),
      el("section", {},
        el("h3", {}, "Card"),
        el("div", { className: "row" },
          this.button("replace-session", "Replace card", "", () => this.enter("replace-session", "Save card", "Card replaced."))),
        el("h4", {}, "Simulate at the account updater"),
        el("div", { className: "row" },
          report("updated", "New number"),
          report("expiry_changed", "New expiry"),
          report("closed", "Account closed"),
          report("contact_cardholder", "Contact cardholder"),
          report("opted_out", "Opted out"),
          report("no_match", "No match")),
        status(), el("div", { className: "entry" })),
      el("section", {},
        el("h3", {}, "Security code"),
        el("div", { className: "row" },
          this.button("refresh-session", "Re-enter code", "", () => this.enter("refresh-session", "Save code", "Security code saved.")),
          this.button("consume", "Consume", "The security code is erased, as required after an authorization.", () => call("POST", path + "/consume"))),
        status(), el("div", { className: "entry" })),
      el("section", {},
        el("h3", {}, "Token"),
        el("div", { className: "row" },
          this.button("read", "Show as JSON", "", async () => {
            await call("GET", path);
            $("call-list").querySelector("details").open = true;
            $("calls").scrollIntoView();
            return "The response is under Calls.";
          }),
          this.button("delete-token", "Delete…", "", async () => {
            if (!(await confirmed("delete", "delete-card", this.token.masked_account_number))) return "Nothing was deleted.";
            await call("DELETE", path);
            $("tokens-title").focus();
            toast("Token deleted.");
          }, "danger")),
        status()));
    this.details.append(this.body);
    this.showFacts();
  }

  // enter makes a session that changes this token, and shows its fields below its button.
  async enter(action, label, done) {
    const { session_id } = await call("POST", `/tokens/${this.id}/${action}`);
    const button = this.body.querySelector(`[data-action="${action}"]`);
    const section = button.closest("section");
    const said = section.querySelector(".status");
    const entry = el("card-entry", { id: `${action}-${this.id}`, "session-id": session_id, "cardholder-name": "optional" });
    const form = el("form", { noValidate: true, className: "entry-form" }, entry,
      el("button", { className: "main" }, label));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      entry.submit?.().catch(() => {}); // the event error tells
    });
    entry.addEventListener("ready", () => entry.focus(), { once: true });
    entry.addEventListener("success", () => {
      form.remove();
      button.focus();
      say(said, done);
      refresh().catch(() => {});
    });
    entry.addEventListener("error", (event) => {
      const { action, message } = event.detail;
      if (action !== "correct") say(said, message, true); // else the field says it
      if (action === "new_session") form.remove();
    });
    section.querySelector(".entry").replaceChildren(form);
    return "";
  }
}

// Records are the payment data of a token.
class Records {
  constructor(row) {
    this.row = row;
    this.path = `/tokens/${row.id}/payment-data`;
    this.page = 1;
    const amount = el("input", { name: "amount", inputMode: "numeric", value: "1999", required: true, autocomplete: "off", size: 8 });
    const currency = el("input", { name: "currency_code", value: "EUR", required: true, autocomplete: "off", size: 4, maxLength: 3 });
    const reference = el("input", { name: "reference", value: "order 7", required: true, autocomplete: "off", size: 12 });
    const merchant = el("input", { type: "checkbox", name: "initiator" });
    const button = el("button", { className: "main" }, "Request a cryptogram");
    button.dataset.action = "payment-data";
    this.form = el("form", { className: "row fields", noValidate: true },
      el("label", {}, "Amount in minor units", amount),
      el("label", {}, "Currency", currency),
      el("label", {}, "Reference", reference),
      button,
      el("label", { className: "check" }, merchant, " Without the shopper (no cryptogram)"));
    merchant.addEventListener("change", () => {
      button.textContent = merchant.checked ? "Request payment data" : "Request a cryptogram";
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      row.act(button, "", async () => {
        const record = await call("POST", this.path, {
          amount: /^\d+$/.test(amount.value) ? Number(amount.value) : amount.value,
          currency_code: currency.value,
          reference: reference.value,
          ...(merchant.checked && { initiator: "merchant" }),
        });
        await this.load(1, record.id);
        if (!record.success) throw new Refusal("No payment data: see the details below.");
        return merchant.checked ? "Payment data created." : "Cryptogram created.";
      });
    });
    this.status = status();
    this.list = el("ol", { className: "records" });
    this.later = el("button", { type: "button" }, "Newer");
    this.earlier = el("button", { type: "button" }, "Older");
    this.where = el("span", {});
    this.later.addEventListener("click", () => this.load(this.page - 1));
    this.earlier.addEventListener("click", () => this.load(this.page + 1));
    this.pages = el("div", { className: "pages", hidden: true }, this.later, this.where, this.earlier);
  }

  async load(page, open) {
    try {
      const list = await read(`/sandbox/api${this.path}?limit=${recordPage}&page=${page}`);
      const { total_pages: pages } = list.pagination;
      this.page = page;
      this.list.replaceChildren(...list.data.map((r) => this.record(r, r.id === open)));
      this.pages.hidden = pages < 2;
      this.later.disabled = page <= 1;
      this.earlier.disabled = page >= pages;
      say(this.where, `${page} of ${pages}`);
    } catch (e) {
      say(this.status, e.message, true);
    }
  }

  record(r, open) {
    const details = el("details", {},
      el("summary", {},
        el("b", {}, money(r.amount, r.currency_code)), " ",
        el("span", {}, r.reference), " ",
        el("span", { className: "quiet" }, time(r.created_at, calendar)), " ",
        el("span", { className: "pill " + (r.success ? "good" : "bad") }, r.success ? "cryptogram" : r.failure_details[0].code)));
    details.addEventListener("toggle", async () => {
      if (details.children.length > 1) return;
      const content = el("div", { className: "content" });
      details.append(content);
      content.append(await opened(r));
    });
    details.open = open; // tells by toggle
    return el("li", { id: "payment-data-" + r.id }, details);
  }
}

// opened shows what is in a record of payment data.
async function opened(r) {
  if (!r.success) {
    return el("ul", {}, ...r.failure_details.map((f) => el("li", {}, el("code", {}, f.code),
      ` (${f.source}). ${f.message} ${f.retryable ? "The same request may succeed later." : "Retrying will not help."}`)));
  }
  if (!r.encrypted_authentication_data) {
    return el("p", { className: "quiet" }, "The encrypted payment data is no longer stored.");
  }
  let p;
  try {
    const result = await request("POST", "/sandbox/open", { encrypted_authentication_data: r.encrypted_authentication_data });
    if (result.status !== 200) throw refusal(result);
    p = result.answer;
  } catch (e) {
    return el("p", { className: "status bad" }, e.message);
  }
  return el("div", {},
    el("dl", { className: "facts" },
      el("dt", {}, "Network token"), el("dd", {}, copyable(p.network_token.token, spaced(p.network_token.token))),
      el("dt", {}, "Expiry"), el("dd", {}, expiry(p.network_token)),
      el("dt", {}, "Cryptogram"), el("dd", {}, p.cryptogram ? copyable(p.cryptogram) : "none"),
      el("dt", {}, "ECI"), el("dd", {}, p.eci ?? "none")),
    el("details", { className: "jwe" },
      el("summary", {}, "As the merchant receives it (JWE)"),
      el("pre", {}, el("code", {}, r.encrypted_authentication_data))));
}

// confirmed asks by a dialog; the element what in it says about which.
function confirmed(name, what, text) {
  const dialog = $(name + "-dialog");
  say($(what), text);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }));
}

for (const name of ["delete", "delete-webhook"]) {
  $(name + "-no").addEventListener("click", () => $(name + "-dialog").close(""));
  $(name + "-yes").addEventListener("click", () => $(name + "-dialog").close("yes"));
}

for (const [id, step] of [["newer", -1], ["older", 1]]) {
  $(id).addEventListener("click", () => {
    page += step;
    refresh().catch(() => {});
  });
}

if (matchMedia("(width < 62rem)").matches) $("test-cards").querySelector("details").open = false; // tokens come below

// Webhooks

const mostWebhooks = 16; // of an account
const latestDeliveries = 20;
const webhooks = new Map(); // by id
let webhookTurn = Promise.resolve();

function refreshWebhooks() {
  return (webhookTurn = webhookTurn.then(lookAtWebhooks, lookAtWebhooks));
}

async function lookAtWebhooks() {
  const { data } = await read(`/sandbox/api/webhooks?limit=${mostWebhooks}`);
  say($("webhook-count"), data.length ? String(data.length) : "");
  $("no-webhooks").hidden = data.length > 0;
  settle($("webhook-list"), webhooks, data, (id) => new Webhook(id), $("webhooks-title"));
  for (const w of webhooks.values()) await w.look();
}

// reveal makes a call that answers with a signing secret. Calls shows all but that.
async function reveal(path, body) {
  const result = await request("POST", "/sandbox/api" + path, body);
  const { status, answer } = result;
  showCall("POST", path, body, status < 400 ? { status, answer: { ...answer, signing_secret: "whsec_…" } } : result);
  if (status >= 400) throw refusal(result);
  return answer;
}

// action makes a button that does what its data-action is when it is pressed.
function action(name, label, run, className = "") {
  const b = el("button", { type: "button", className }, label);
  b.dataset.action = name;
  b.addEventListener("click", () => run(b));
  return b;
}

// A Webhook is an endpoint of the list, with all that can be done to it.
class Webhook {
  constructor(id) {
    this.path = "/webhooks/" + id;
    this.deliveries = new Map(); // by id
    this.head = el("summary", {});
    this.details = el("details", { name: "webhooks" }, this.head);
    this.item = el("li", { id: "webhook-" + id, className: "webhook" }, this.details);
    this.details.addEventListener("toggle", () => {
      if (!this.details.open) return;
      this.build();
      refreshWebhooks().catch((e) => say(this.status, e.message, true));
    });
  }

  update(webhook) {
    if (this.webhook && this.webhook.status !== webhook.status) {
      say($("announcement"), `The endpoint ${webhook.url} is ${webhook.status}.`);
    }
    this.webhook = webhook;
    const { url, description, events, status, disabled_reason: reason } = webhook;
    this.head.replaceChildren(
      el("span", { className: "mono url" }, url), " ",
      el("span", { className: "pills" },
        el("span", { className: "pill " + (reason ? "bad" : "good") }, reason ? `${status}: ${reason}` : status)), " ",
      el("span", { className: "why quiet" }, [description, events.length === 3 ? "all events" : events.join(", ")].filter(Boolean).join(" · ")));
    if (this.toggle) this.showToggle();
  }

  showToggle() {
    const on = this.webhook.status === "enabled";
    this.toggle.dataset.action = on ? "disable" : "enable";
    say(this.toggle, on ? "Disable" : "Enable");
  }

  build() {
    if (this.list) return;
    const button = (name, label, run, className) =>
      action(name, label, (b) => attempt(b, this.status, run, refreshWebhooks), className);
    this.status = status();
    this.secret = el("div", {});
    this.toggle = button("", "", async () => {
      const w = await call("PATCH", this.path, { status: this.webhook.status === "enabled" ? "disabled" : "enabled" });
      return `The endpoint is ${w.status}.`;
    });
    this.count = el("span", { className: "count" });
    this.none = el("p", { className: "empty", hidden: true }, "No deliveries yet.");
    this.list = el("ol", { className: "deliveries" });
    this.title = el("h3", { tabIndex: -1 }, "Deliveries ", this.count);
    this.redelivered = status();
    this.details.append(el("div", { className: "body" },
      el("section", {},
        el("h3", {}, "Endpoint"),
        el("div", { className: "row" },
          button("test", "Send a test event", async () => {
            const { status_code: code, duration_ms: ms } = await call("POST", this.path + "/test");
            if (!code) throw new Refusal(`No response after ${ms} ms.`);
            if (code < 200 || code > 299) throw new Refusal(`The endpoint responded with ${code} after ${ms} ms: not delivered.`);
            return `The endpoint responded with ${code} after ${ms} ms: delivered.`;
          }),
          button("rotate-secret", "Rotate secret", async () => {
            const { signing_secret: secret } = await reveal(this.path + "/rotate-secret");
            this.show(secret);
            return "For 24 hours, deliveries are signed with both the old and the new secret.";
          }),
          this.toggle,
          button("delete-webhook", "Delete…", async () => {
            if (!(await confirmed("delete-webhook", "delete-webhook-url", this.webhook.url))) return "Nothing was deleted.";
            await call("DELETE", this.path);
            $("webhooks-title").focus();
            toast("Endpoint deleted.");
          }, "danger")),
        this.status, this.secret),
      el("section", {}, this.title, this.none, this.redelivered, this.list)));
    this.showToggle();
  }

  // show shows a signing secret until it is put away: the vault shows it only once.
  show(secret) {
    const away = el("button", { type: "button" }, "Done");
    away.dataset.action = "put-away";
    away.addEventListener("click", () => {
      this.secret.replaceChildren();
      this.head.focus();
    });
    const copy = copyable(secret);
    this.secret.replaceChildren(el("div", { className: "secret" },
      el("p", {}, "The signing secret is shown only once. Click to copy it."), copy, away));
    copy.focus();
  }

  async look() {
    if (!this.details.open || !this.list) return;
    let result;
    try {
      result = await read(`/sandbox/api${this.path}/deliveries?limit=${latestDeliveries}`);
    } catch (e) {
      if (e.status === 404) return; // deleted meanwhile
      throw e;
    }
    const { data, pagination: { total_items: total } } = result;
    say(this.count, total > data.length ? `the latest ${data.length} of ${total}` : total ? String(total) : "");
    this.none.hidden = total > 0;
    settle(this.list, this.deliveries, data, () => new Delivery(this), this.title);
  }
}

// A Delivery is an event on its way to a webhook, or what became of it.
class Delivery {
  constructor(webhook) {
    this.facts = el("span", {});
    this.button = action("redeliver", "Redeliver", (b) => attempt(b, webhook.redelivered, async () => {
      if (webhook.webhook.status !== "enabled") throw new Refusal("The endpoint is disabled and would receive nothing.");
      try {
        await call("POST", `/events/${this.event}/redeliver`);
      } catch (e) {
        throw e.status === 404 ? new Refusal("The event is no longer stored: its token was deleted, or it is older than seven days.") : e;
      }
      return "The event is being sent again to every endpoint that subscribes to it.";
    }, refreshWebhooks));
    this.item = el("li", {}, this.facts, this.button);
  }

  update(d) {
    this.event = d.event_id;
    this.button.ariaLabel = `Redeliver ${d.event_type} of the token ${d.token_id?.slice(0, 8) ?? "unknown"}`;
    const tone = { pending: "busy", delivered: "good", failed: "bad" }[d.status];
    const tries = d.attempts === 1 ? "1 attempt" : d.attempts + " attempts";
    this.facts.replaceChildren(
      d.last_attempt_at ? time(d.last_attempt_at) : el("span", { className: "quiet" }, "not yet"), " ",
      el("code", { title: "event " + d.event_id }, el("b", {}, d.event_type)), " ",
      el("span", { className: "mono quiet", title: "token " + d.token_id }, d.token_id ? d.token_id.slice(0, 8) + "…" : ""), " ",
      el("span", { className: "pill " + tone }, d.status), " ",
      el("span", {}, d.attempts ? `${d.last_status_code ?? "no response"}, ${tries}` : ""), " ",
      d.next_attempt_at ? el("span", { className: "quiet" }, "next at ", time(d.next_attempt_at)) : "");
  }
}

$("webhook-form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt($("register-webhook"), $("webhook-status"), async () => {
    const url = $("webhook-url");
    const boxes = [...event.target.elements.events];
    const body = { url: url.value };
    if (!boxes.every((b) => b.checked)) body.events = boxes.filter((b) => b.checked).map((b) => b.value);
    const { id, signing_secret: secret } = await reveal("/webhooks", body);
    url.value = "";
    await refreshWebhooks();
    const w = webhooks.get(id);
    w.details.open = true;
    w.build(); // toggle tells later
    w.show(secret);
    return "Endpoint registered.";
  }, refreshWebhooks);
});

// Copies

function copyable(text, label = text) {
  const b = el("button", { type: "button", className: "copy" }, label);
  b.dataset.copy = text;
  return b;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    toast("Copied");
  } catch { // not on this origin, or not allowed
    getSelection().selectAllChildren(button);
    toast("Selected: press Ctrl+C or ⌘C");
  }
});

let toastEnd;

function toast(text) {
  say($("toast"), text);
  clearTimeout(toastEnd);
  toastEnd = setTimeout(() => say($("toast"), ""), 2500);
}

// Entry of a card

const entry = $("card-entry");
let sessions = 0;

async function newSession() {
  const mine = ++sessions;
  const options = { bypass_identification: $("bypass").checked };
  if ($("lifetime").value) options.expiration_time = Number($("lifetime").value);
  const { session_id } = await call("POST", "/tokens/session", options);
  if (mine === sessions) entry.setAttribute("session-id", session_id); // else another choice came after
}

// underWay keeps the options as they are: another session would end the one of the card.
function underWay(on) {
  $("bypass").disabled = $("lifetime").disabled = on;
}

const openSession = () => newSession().catch((e) => say($("entry-status"), e.message, true));

$("card-form").addEventListener("submit", (event) => {
  event.preventDefault();
  say($("entry-status"), "");
  if (!entry.submit) return; // not loaded yet
  underWay(Boolean(entry.sessionId));
  entry.submit().catch(() => {}).finally(() => underWay(false)); // the event error tells
});
entry.addEventListener("challenge", () => {
  $("store").hidden = true; // the answer is given to the bank
});
entry.addEventListener("success", async () => {
  $("store").hidden = false;
  say($("entry-status"), "Card stored.");
  page = 1;
  await openSession();
  await refresh().catch(() => {});
});
entry.addEventListener("error", async (event) => {
  const { action, message } = event.detail;
  $("store").hidden = false;
  if (action !== "correct") say($("entry-status"), message, true); // else the fields say it
  if (action === "new_session") await openSession(); // what was typed stays
});
$("bypass").addEventListener("change", openSession);
$("lifetime").addEventListener("change", openSession);

import("/sdk/v1/card-entry.js").then(openSession, () => {
  say($("entry-status"), "The card-entry component could not be loaded.", true);
  $("store").disabled = true;
});

// What happens by itself

let wake;

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) wake?.();
});

while (!stale) {
  if (!document.hidden) {
    try {
      await refresh();
      await refreshWebhooks();
      $("trouble").hidden = !stale;
    } catch (e) {
      if (!stale) {
        say($("trouble"), e.message, true);
        $("trouble").hidden = false;
      }
    }
  }
  await new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, 1000);
  });
}
