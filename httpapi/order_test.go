package httpapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/network"
	"github.com/google/uuid"
)

// A draft is a request that breaks rules.
type draft struct {
	method, path, query, body string
	padding                   int // blanks after the body
	headers                   []string
	unscoped, unapproved      bool
	limited, disabled         bool
	public                    bool // requires no key
}

// A rule has a way to break it and the expected answer.
type rule struct {
	name       string
	status     int
	classifier string
	violation  string // code, if the classifier does not determine it
	breaks     func(*draft)
}

// The rules up to the syntax, in the order in which they are checked.
var borderRules = []rule{
	{"path", 404, "NOT_FOUND", "", func(d *draft) { d.path += "/x/y" }},
	{"method", 405, "METHOD_NOT_ALLOWED", "", func(d *draft) { d.method = "PUT" }},
	{"key", 401, "UNAUTHORIZED", "", func(d *draft) { d.headers = append(d.headers, "X-Api-Key", "no") }},
	{"rate limit", 429, "RATE_LIMITED", "", func(d *draft) { d.limited = true }},
	{"version", 400, "UNSUPPORTED_VERSION", "", func(d *draft) { d.headers = append(d.headers, "X-Api-Version", "2.0") }},
	{"scope", 403, "INSUFFICIENT_SCOPE", "", func(d *draft) { d.unscoped = true }},
	{"approval", 403, "IMPORT_NOT_APPROVED", "", func(d *draft) { d.unapproved = true }},
	{"integration", 403, "INTEGRATION_NOT_ENABLED", "", func(d *draft) { d.disabled = true }},
	{"content type", 415, "UNSUPPORTED_MEDIA_TYPE", "", func(d *draft) { d.headers = append(d.headers, "Content-Type", "text/plain") }},
	{"size", 413, "PAYLOAD_TOO_LARGE", "", func(d *draft) { d.padding = 64 << 10 }},
}

var syntaxRules = []rule{
	{"syntax of the body", 400, "MALFORMED_REQUEST", "", func(d *draft) { d.body = strings.TrimSuffix(d.body, "}") }},
	{"syntax of the query", 400, "MALFORMED_REQUEST", "", func(d *draft) { d.query = "?a=%zz" }},
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// A request that breaks several rules is answered for the earliest of them.
func TestOrderOfChecks(t *testing.T) {
	n := &wrapped{art: "png"}
	r, _ := newNetworkRig(t, n, &cardvault.Options{PPAN: &provider{}, Webhooks: &sender{}}, &httpapi.Options{ClientAddr: clients()})
	webhook := "/webhooks/" + r.newWebhook(t, r.vault)
	id := r.activate(t)
	event := r.lastEvent(t, r.vault)
	invalid := r.activate(t)
	n.notify(t, r.vault, network.NoticeInvalidated)
	opts := r.opts
	opts.PPAN, opts.Webhooks = nil, nil
	disabled := newHandler(t, openVault(t, r.store, &opts), nil)
	unapproved := r.newAccount(t, &cardvault.AccountOptions{ImportApproved: new(false), NetworkTokensActive: new(false)})
	limited := newHandler(t, r.vault, &httpapi.Options{RateLimit: httpapi.RateLimit{PerSecond: 1e-6}})
	keys := map[[2]bool]string{} // by unscoped and unapproved
	for _, unscoped := range []bool{false, true} {
		scopes := cardvault.AllScopes()
		if unscoped {
			scopes = []cardvault.Scope{cardvault.ScopeForwardCreate}
		}
		_, keys[[2]bool{unscoped, false}] = r.newKey(t, r.vault, 0, scopes...)
		_, keys[[2]bool{unscoped, true}] = r.newKey(t, unapproved, 0, scopes...)
	}
	for _, key := range keys {
		send(t, limited, "GET", "/tokens", "", "X-Api-Key", key)
		// An idempotency key that was used for another request.
		send(t, r.handler, "POST", "/tokens/session", `{"expiration_time":7}`, "X-Api-Key", key, "Idempotency-Key", "used")
	}

	field := rule{"field", 422, "VALIDATION_FAILED", "out_of_range", func(d *draft) {
		d.body = strings.NewReplacer(`"expiration_time":5`, `"expiration_time":0`, `"expiry_month":4`, `"expiry_month":13`,
			`"amount":1099`, `"amount":-1`).Replace(d.body)
	}}
	parameter := rule{"parameter", 422, "VALIDATION_FAILED", "unknown_parameter", func(d *draft) { d.query = "?a=b" }}
	at := func(d *draft, token string) {
		_, rest, _ := strings.Cut(d.path[len("/tokens/"):], "/")
		d.path = "/tokens/" + token + "/" + rest
	}
	existence := rule{"existence", 404, "NOT_FOUND", "", func(d *draft) { at(d, uuid.NewString()) }}
	idempotency := rule{"idempotency header", 400, "MALFORMED_REQUEST", "", func(d *draft) {
		d.headers = append(d.headers, "Idempotency-Key", "")
	}}
	token := func(d *draft, id string) { d.body = uuids.ReplaceAllString(d.body, id) }
	session, finished := r.newSession(t), r.newSession(t)
	open := r.do(t, "GET", session, "")
	r.do(t, "POST", finished+"/complete-action", completion(t, open, entered, "")).want(t, 200)
	unknown := []rule{{"existence", 404, "NOT_FOUND", "", func(d *draft) { d.path = uuids.ReplaceAllString(d.path, uuid.NewString()) }}}
	flag := rule{"member", 422, "VALIDATION_FAILED", "wrong_type", func(d *draft) {
		d.body = strings.Replace(d.body, `"legacy_hmac":true`, `"legacy_hmac":1`, 1)
	}}
	target := rule{"url", 422, "VALIDATION_FAILED", "invalid_format", func(d *draft) {
		d.body = strings.Replace(d.body, "https://", "http://", 1)
	}}
	missing := rule{"body", 400, "MALFORMED_REQUEST", "", func(d *draft) { d.body = "" }}
	for _, test := range []struct {
		draft draft
		tiers [][]rule // rules of one tier are not broken together
	}{
		{
			draft{method: "POST", path: "/cde-import", body: cardBody},
			[][]rule{{missing, idempotency, syntaxRules[0], syntaxRules[1]}, {field, parameter}},
		},
		{
			draft{method: "POST", path: "/tokens/session", body: `{"expiration_time":5}`},
			[][]rule{{idempotency, syntaxRules[0], syntaxRules[1]}, {field, parameter}, {
				{"idempotency key", 422, "IDEMPOTENCY_KEY_REUSED", "", func(d *draft) { d.headers = append(d.headers, "Idempotency-Key", "used") }},
			}},
		},
		{
			draft{method: "PATCH", path: "/tokens/" + id, body: `{"expiry_month":4,"expiry_year":2031}`},
			[][]rule{{missing, syntaxRules[0], syntaxRules[1]}, {field, parameter}, {
				{"existence", 404, "NOT_FOUND", "", func(d *draft) {
					if strings.HasSuffix(d.path, id) {
						d.path = "/tokens/" + uuid.NewString()
					}
				}},
			}, {
				{"state", 422, "VALIDATION_FAILED", "depends_on", func(d *draft) {
					d.body = strings.Replace(d.body, "{", `{"import_provider":"p",`, 1)
				}},
			}},
		},
		{
			draft{method: "GET", path: "/tokens/" + id, body: `{}`},
			[][]rule{syntaxRules, {
				{"member", 422, "VALIDATION_FAILED", "unknown_field", func(d *draft) { d.body = strings.Replace(d.body, "{", `{"a":1`, 1) }},
				parameter,
			}, {
				{"existence", 404, "NOT_FOUND", "", func(d *draft) {
					if strings.HasSuffix(d.path, id) {
						d.path = "/tokens/x"
					}
				}},
			}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/provisions", body: "{}"},
			[][]rule{{idempotency, syntaxRules[0], syntaxRules[1]}, {parameter}, {existence}, {
				{"state", 409, "NETWORK_TOKEN_STATE_CONFLICT", "", func(d *draft) { at(d, invalid) }},
			}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/payment-data", body: payment},
			[][]rule{{missing, idempotency, syntaxRules[0], syntaxRules[1]}, {field, parameter}, {existence}},
		},
		{
			draft{method: "GET", path: "/tokens/" + id + "/payment-data", body: "{}"},
			[][]rule{syntaxRules, {parameter, {"sort", 422, "VALIDATION_FAILED", "invalid_enum", func(d *draft) { d.query = "?sort=x" }}}, {existence}},
		},
		{
			draft{method: "GET", path: r.artPath(t, id), body: "{}", public: true},
			[][]rule{syntaxRules, {parameter}, {{"existence", 404, "NOT_FOUND", "", func(d *draft) { d.path = "/tokens/card-art/" + uuid.NewString() }}}},
		},
		{
			draft{method: "GET", path: "/tokens/" + id + "/security-code", body: "{}"},
			[][]rule{syntaxRules, {parameter}, {existence}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/refresh-session", body: "{}"},
			[][]rule{{idempotency, syntaxRules[0], syntaxRules[1]}, {parameter}, {existence}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/replace", body: cardBody},
			[][]rule{{missing, idempotency, syntaxRules[0], syntaxRules[1]}, {field, parameter}, {existence}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/replace-session", body: "{}"},
			[][]rule{{idempotency, syntaxRules[0], syntaxRules[1]}, {parameter}, {existence}},
		},
		{
			draft{method: "POST", path: "/tokens/" + id + "/consume", body: "{}"},
			[][]rule{{idempotency, syntaxRules[0], syntaxRules[1]}, {parameter}, {existence}},
		},
		{
			draft{method: "POST", path: ppanPath, body: tokenBody(id), headers: ppanHeaders},
			[][]rule{{missing, syntaxRules[0], syntaxRules[1]}, {
				parameter,
				{"header", 422, "VALIDATION_FAILED", "duplicate_parameter", func(d *draft) { d.headers = append(d.headers, "X-Provider-Mid", "1") }},
				{"member", 422, "VALIDATION_FAILED", "unknown_field", func(d *draft) { d.body = strings.Replace(d.body, "{", `{"a":1,`, 1) }},
			}, {
				{"existence", 404, "NOT_FOUND", "", func(d *draft) { token(d, uuid.NewString()) }},
			}, {
				{"state", 409, "TOKEN_INVALIDATED", "", func(d *draft) { token(d, invalid) }},
			}},
		},
		{
			draft{method: "GET", path: session, body: "{}", public: true},
			[][]rule{syntaxRules, {parameter}, {{"existence", 404, "NOT_FOUND", "", func(d *draft) { d.path = "/sessions/" + uuid.NewString() }}}},
		},
		{
			draft{method: "POST", path: session + "/complete-action", body: `{"action":"tokenize_card","result":{"enc_payload":"x"}}`, public: true},
			[][]rule{{missing, syntaxRules[0], syntaxRules[1]}, {
				{"existence", 404, "NOT_FOUND", "", func(d *draft) { d.path = "/sessions/x/complete-action" }},
			}, {
				{"state", 409, "SESSION_COMPLETED", "", func(d *draft) { d.path = finished + "/complete-action" }},
			}, {
				parameter,
				{"action", 422, "VALIDATION_FAILED", "invalid_enum", func(d *draft) { d.body = strings.Replace(d.body, "tokenize_card", "x", 1) }},
			}, {
				{"payload", 422, "VALIDATION_FAILED", "undecryptable", func(*draft) {}},
			}},
		},
		{
			draft{method: "POST", path: "/webhooks", body: `{"url":"https://hook.example/204","legacy_hmac":true}`},
			[][]rule{{missing, syntaxRules[0], syntaxRules[1]}, {flag, target, parameter}},
		},
		{
			draft{method: "GET", path: "/webhooks", body: "{}"},
			[][]rule{syntaxRules, {parameter}},
		},
		{
			draft{method: "GET", path: webhook, body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
		{
			draft{method: "PATCH", path: webhook, body: `{"url":"https://hook.example/204","legacy_hmac":true}`},
			[][]rule{{missing, syntaxRules[0], syntaxRules[1]}, {flag, target, parameter}, unknown},
		},
		{
			draft{method: "DELETE", path: webhook, body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
		{
			draft{method: "POST", path: webhook + "/rotate-secret", body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
		{
			draft{method: "POST", path: webhook + "/test", body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
		{
			draft{method: "GET", path: webhook + "/deliveries", body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
		{
			draft{method: "POST", path: "/events/" + event + "/redeliver", body: "{}"},
			[][]rule{syntaxRules, {parameter}, unknown},
		},
	} {
		var tiers [][]rule
		for _, border := range borderRules {
			optional := test.draft.path == ppanPath || test.draft.path == "/webhooks" && test.draft.method == "POST" ||
				test.draft.path == webhook && test.draft.method == "PATCH" || test.draft.path == webhook+"/test"
			approved := test.draft.path == "/cde-import" || strings.HasSuffix(test.draft.path, "/replace")
			skip := border.name == "approval" && !approved || border.name == "integration" && !optional ||
				slices.Contains([]string{"key", "rate limit", "scope"}, border.name) && test.draft.public
			if !skip {
				tiers = append(tiers, []rule{border})
			}
		}
		tiers = append(tiers, test.tiers...)
		for i, tier := range tiers {
			for _, first := range tier {
				check := func(name string, second *rule) {
					t.Run(fmt.Sprintf("%s %s/%s/%s", test.draft.method, test.draft.path[:7], first.name, name), func(t *testing.T) {
						d := test.draft
						if second != nil {
							second.breaks(&d)
						}
						first.breaks(&d)
						h := r.handler
						switch {
						case d.limited:
							h = limited
						case d.disabled:
							h = disabled
						}
						d.body += strings.Repeat(" ", d.padding)
						key := keys[[2]bool{d.unscoped, d.unapproved}]
						a := send(t, h, d.method, d.path+d.query, d.body, append(d.headers, "X-Api-Key", key)...)
						a.want(t, first.status, first.classifier)
						if first.violation != "" && !strings.Contains(a.body, `"code":"`+first.violation+`"`) {
							t.Errorf("no %s in %s", first.violation, a.body)
						}
					})
				}
				check("alone", nil)
				for _, later := range tiers[i+1:] {
					for _, second := range later {
						if second.name == "body" && (first.status == 413 || first.status == 415) {
							continue // a missing body has neither size nor type
						}
						check(second.name, &second)
					}
				}
			}
		}
	}
	send(t, r.handler, "GET", "/tokens/"+id, "", "X-Api-Key", r.key).want(t, http.StatusOK)
}
