package httpapi

import (
	"net/http"
	"strings"

	"github.com/cardvault/cardvault"
)

// An endpoint is what one method of a path does.
type endpoint struct {
	scope cardvault.Scope
	also  cardvault.Scope // a second required scope, if set

	// public endpoints answer without an API key. Of card art,
	// Options.CardArtRequiresKey may say otherwise.
	public bool

	// approved, if set, says whether the account may use the endpoint.
	approved func(*cardvault.Account) error

	// ofKeys marks endpoints that manage API keys: a principal without Key may not use
	// them, because its keys would have no creator to end with.
	ofKeys bool

	// enabled, if set, says whether the handler is set up for the endpoint.
	enabled func(*handler) error

	// repeatable endpoints honour an idempotency key.
	repeatable bool

	// needsBody marks endpoints with a required member. Others treat a missing body as {},
	// and endpoints without members accept nothing else.
	needsBody bool

	maxBody int // bytes; 0 stands for the default, maxBody

	serve func(*call) error
}

// A route is a path, split at "/", with its methods. "*" stands for an id.
type route struct {
	path    []string
	methods map[string]*endpoint
}

// pattern returns the path of a route, "" of none.
func (r *route) pattern() string {
	if r == nil {
		return ""
	}
	return "/" + strings.Join(r.path, "/")
}

// routes are in order: literals come first, they beat an id. http.ServeMux cannot
// hold all of the documented paths.
var routes = []route{
	{[]string{"tokens", "session"}, map[string]*endpoint{"POST": createSession}},
	{[]string{"cde-import"}, map[string]*endpoint{"POST": importCard}},
	{[]string{"tokens"}, map[string]*endpoint{"GET": listTokens}},
	{[]string{"tokens", "*"}, map[string]*endpoint{"GET": getToken, "PATCH": updateToken, "DELETE": deleteToken}},
	{[]string{"tokens", "card-art", "*"}, map[string]*endpoint{"GET": getCardArt}},
	{[]string{"tokens", "*", "payment-data"}, map[string]*endpoint{"GET": listPaymentData, "POST": requestPaymentData}},
	{[]string{"tokens", "*", "payment-data", "*"}, map[string]*endpoint{"GET": getPaymentData}},
	{[]string{"tokens", "*", "provisions"}, map[string]*endpoint{"POST": provisionToken}},
	{[]string{"tokens", "*", "security-code"}, map[string]*endpoint{"GET": getSecurityCode}},
	{[]string{"tokens", "*", "refresh-session"}, map[string]*endpoint{"POST": refreshSession}},
	{[]string{"tokens", "*", "replace"}, map[string]*endpoint{"POST": replaceCard}},
	{[]string{"tokens", "*", "replace-session"}, map[string]*endpoint{"POST": replaceSession}},
	{[]string{"tokens", "*", "consume"}, map[string]*endpoint{"POST": consumeToken}},
	ppanRoute(neutralProvider),
	{[]string{"forward"}, map[string]*endpoint{"POST": forwardCard}},
	{[]string{"sessions", "*"}, map[string]*endpoint{"GET": getSession, "OPTIONS": preflight}},
	{[]string{"sessions", "*", "complete-action"}, map[string]*endpoint{"POST": completeSession, "OPTIONS": preflight}},
	{[]string{"merchants"}, map[string]*endpoint{"GET": listMerchants}},
	{[]string{"merchants", "*", "rotate-secret"}, map[string]*endpoint{"POST": rotatePaymentSecret}},
	{[]string{"merchants", "*", "previous-secret"}, map[string]*endpoint{"DELETE": revokePaymentSecret}},
	{[]string{"api-keys"}, map[string]*endpoint{"GET": listAPIKeys, "POST": createAPIKey}},
	{[]string{"api-keys", "*"}, map[string]*endpoint{"GET": getAPIKey, "PATCH": updateAPIKey, "DELETE": deleteAPIKey}},
	{[]string{"webhooks"}, map[string]*endpoint{"GET": listWebhooks, "POST": createWebhook}},
	{[]string{"webhooks", "*"}, map[string]*endpoint{"GET": getWebhook, "PATCH": updateWebhook, "DELETE": deleteWebhook}},
	{[]string{"webhooks", "*", "rotate-secret"}, map[string]*endpoint{"POST": rotateSecret}},
	{[]string{"webhooks", "*", "previous-secrets"}, map[string]*endpoint{"DELETE": revokeSecrets}},
	{[]string{"webhooks", "*", "test"}, map[string]*endpoint{"POST": testWebhook}},
	{[]string{"webhooks", "*", "deliveries"}, map[string]*endpoint{"GET": listDeliveries}},
	{[]string{"events", "*", "redeliver"}, map[string]*endpoint{"POST": redeliverEvent}},
	{[]string{"audit-records"}, map[string]*endpoint{"GET": listAuditRecords}},
	componentRoute("card-entry.js"),
	componentRoute("card-entry.d.ts"),
	componentRoute("custom-elements.json"),
	componentRoute("frame.html"),
	componentRoute("frame.js"),
	componentRoute("frame.css"),
	contractRoute("openapi.yaml", "application/yaml", contractYAML),
	contractRoute("openapi.json", "application/json", contractJSON),
}

// route returns the route of a request, if it has one, its endpoint and the ids in
// its path.
func (h *handler) route(r *http.Request) (found *route, e *endpoint, ids [2]string, err error) {
	path, ok := strings.CutPrefix(r.URL.Path, "/")
	// A path that was written with escapes is not one of ours.
	if !ok || r.URL.RawPath != "" {
		return nil, nil, ids, notFound
	}

	var segments [4]string
	n := 0
	for segment := range strings.SplitSeq(path, "/") {
		if n == len(segments) {
			return nil, nil, ids, notFound
		}
		segments[n] = segment
		n++
	}

next:
	for i := range h.routes {
		candidate := &h.routes[i]
		if len(candidate.path) != n {
			continue
		}

		ids, given := [2]string{}, 0
		for j, want := range candidate.path {
			switch {
			case want == "*" && segments[j] != "":
				ids[given] = segments[j]
				given++
			case want != segments[j]:
				continue next
			}
		}

		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		if e := candidate.methods[method]; e != nil {
			return candidate, e, ids, nil
		}
		return candidate, nil, ids, methodNotAllowed.with(allow(candidate.methods))
	}
	return nil, nil, ids, notFound
}

// methods are all that routes have.
var methods = []string{"GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"}

// allow returns the value of the header Allow.
func allow(endpoints map[string]*endpoint) string {
	var allowed []string
	for _, m := range methods {
		if endpoints[m] != nil || m == "HEAD" && endpoints["GET"] != nil {
			allowed = append(allowed, m)
		}
	}
	return strings.Join(allowed, ", ")
}
