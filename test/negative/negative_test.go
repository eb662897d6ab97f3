// Package negative_test sends forbidden requests to every operation, with one fault each.
// It derives the faults from the contract alone.
package negative_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/card"
	"github.com/cardvault/cardvault/forward"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/internal/transcript"
	"github.com/cardvault/cardvault/vaulttest"
	"github.com/google/uuid"
)

type object = map[string]any

// An operation is an operation of the contract, with one example of its body.
type operation struct {
	id, method, path string
	parameters       []object
	body             object // its schema; nil without a body
	example          object // a valid body
	needsBody, open  bool
	answers          object
}

// A contract is the document, with methods to follow its references.
type contract struct{ root object }

func (c *contract) follow(node any) object {
	n, _ := node.(object)
	ref, ok := n["$ref"].(string)
	if !ok {
		return n
	}
	var at any = c.root
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		at = at.(object)[name]
	}
	return c.follow(at)
}

func list(v any) []any { l, _ := v.([]any); return l }

// operations returns the operations of the API, once for each example of a body. It omits
// files and preflights, which read no input.
func (c *contract) operations() (all []*operation) {
	for path, item := range c.root["paths"].(object) {
		for method, n := range item.(object) {
			op, ok := n.(object)
			if !ok || method == "options" || strings.HasPrefix(path, "/sdk/") || strings.HasPrefix(path, "/openapi.") {
				continue
			}
			o := &operation{id: op["operationId"].(string), method: strings.ToUpper(method), path: path, answers: op["responses"].(object)}
			for _, p := range slices.Concat(list(item.(object)["parameters"]), list(op["parameters"])) {
				o.parameters = append(o.parameters, c.follow(p))
			}
			if security, ok := op["security"].([]any); ok {
				o.open = len(security) == 0 || len(security[0].(object)) == 0
			}
			if body := c.follow(op["requestBody"]); body != nil {
				media := body["content"].(object)["application/json"].(object)
				o.needsBody, _ = body["required"].(bool)
				o.body = c.follow(media["schema"])
				for name, e := range media["examples"].(object) {
					given := *o
					given.id, given.example = o.id+" with "+name, e.(object)["value"].(object)
					all = append(all, &given)
				}
				continue
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *operation) int { return strings.Compare(a.id, b.id) })
	return all
}

// A rig is the REST API of a vault with a token and a session.
type rig struct {
	t       *testing.T
	vault   *cardvault.Vault
	handler http.Handler
	key     string
	token   string
	session string
	sent    int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, vault: vaulttest.NewWith(t, &cardvault.Options{Mode: cardvault.Sandbox, Webhooks: transcript.Sender{}, PPAN: transcript.Provider{}, Audit: new(cardvault.AuditOptions)})}
	f, err := forward.New(r.vault, []forward.Destination{{
		Name: "psp", URL: "https://api.psp.example/v1/",
		Credential: func(context.Context, uuid.UUID, string) (forward.Credential, error) {
			return forward.NewCredential([]byte("credential")), nil
		},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	h, err := httpapi.NewHandler(r.vault, &httpapi.Options{
		Forward: f,
		ClientAddr: func(*http.Request) netip.Addr { // failing completions are limited per client
			return netip.AddrFrom4([4]byte{10, 0, byte(r.sent >> 8), byte(r.sent)})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	key, err := r.vault.CreateAPIKey(t.Context(), "negative", cardvault.AllScopes(), nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := r.vault.Import(t.Context(), cardvault.Card{PAN: card.NewPAN([]byte("4111110000000005")), Expiry: card.Expiry{Month: 12, Year: 2030}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := r.vault.CreateSession(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.handler, r.key, r.token, r.session = h, key.Text.Text(), token.ID.String(), session.ID.UUID().String()
	return r
}

// A request is valid until a test spoils it.
type request struct {
	method, target, body string
	headers              []string
}

// request returns a request of an operation with all required parts.
func (r *rig) request(o *operation) request {
	id := r.token
	if strings.HasPrefix(o.path, "/sessions/") {
		id = r.session
	}
	q := request{method: o.method, target: strings.NewReplacer("{id}", id, "{payment_data_id}", r.session, "{art_id}", r.session).Replace(o.path)}
	if !o.open {
		q.headers = []string{"X-Api-Key", r.key}
	}
	for _, p := range o.parameters {
		if p["in"] == "header" && p["required"] == true {
			q.headers = append(q.headers, p["name"].(string), p["example"].(string))
		}
	}
	if o.body != nil {
		q.body = encode(o.example)
	}
	return q
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// refused sends a request, which must be refused with a documented status, and with a
// violation of the named field, if any.
func (r *rig) refused(o *operation, what string, q request, status int, field string) {
	r.t.Helper()
	r.sent++
	a := transcript.Send(r.t, r.handler, q.method, q.target, q.body, q.headers...)
	var failure struct {
		Status, Classifier string
		Violations         []struct{ Field, Code string } `json:"validation_errors"`
	}
	err := json.Unmarshal([]byte(a.Body), &failure)
	if a.Status != status || err != nil || failure.Status != fmt.Sprint(status) || failure.Classifier == "" {
		r.t.Errorf("%s, %s: %d %s, want %d\n%s %s %.200s", o.id, what, a.Status, a.Body, status, q.method, q.target, q.body)
		return
	}
	if o.answers[failure.Status] == nil && status != 405 {
		r.t.Errorf("%s, %s: the status %d is not documented", o.id, what, status)
	}
	if field == "" {
		return
	}
	for _, v := range failure.Violations {
		if v.Field == field {
			return
		}
	}
	r.t.Errorf("%s, %s: %v names no %s", o.id, what, failure.Violations, field)
}

// TestNegative spoils one thing at a time.
func TestNegative(t *testing.T) {
	_, text := httpapi.OpenAPI()
	c := &contract{}
	if err := json.Unmarshal(text, &c.root); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	operations := c.operations()
	for _, o := range operations {
		r.headers(o)
		r.query(o)
		r.whole(o)
		r.members(c, o, "", o.body, nil)
	}
	r.methods(c)

	if len(operations) < 30 || r.sent < 1000 {
		t.Errorf("%d operations, %d requests", len(operations), r.sent)
	}
	// None of it had an effect.
	p, err := r.vault.List(t.Context(), nil)
	if err != nil || p.TotalItems != 1 || p.Items[0].BusinessKey != "" {
		t.Errorf("tokens: %v, %v", p, err)
	}
	if hooks, err := r.vault.ListWebhooks(t.Context(), nil); err != nil || hooks.TotalItems != 0 {
		t.Errorf("webhooks: %v, %v", hooks, err)
	}
	if keys, err := r.vault.ListAPIKeys(t.Context(), nil); err != nil || keys.TotalItems != 1 {
		t.Errorf("API keys: %v, %v", keys, err)
	}
}

// headers spoils the headers of a request.
func (r *rig) headers(o *operation) {
	r.t.Helper()
	with := func(name, value string) request {
		q := r.request(o)
		for i := 0; i < len(q.headers); i += 2 {
			if strings.EqualFold(q.headers[i], name) {
				q.headers = slices.Delete(q.headers, i, i+2)
				break
			}
		}
		if value != "" {
			q.headers = append(q.headers, name, value)
		}
		return q
	}
	if !o.open {
		r.refused(o, "no key", with("X-Api-Key", ""), 401, "")
		last := "0" // a wrong checksum
		if strings.HasSuffix(r.key, last) {
			last = "1"
		}
		r.refused(o, "no key of the vault", with("X-Api-Key", r.key[:len(r.key)-1]+last), 401, "")
		two := r.request(o)
		two.headers = append(two.headers, "X-Api-Key", r.key)
		r.refused(o, "two keys", two, 401, "")
	}
	r.refused(o, "another version", with("X-Api-Version", "1.1"), 400, "")

	for _, p := range o.parameters {
		name := p["name"].(string)
		most, bounded := p["schema"].(object)["maxLength"].(float64)
		switch {
		case p["in"] != "header":
		case p["required"] == true:
			r.refused(o, "without "+name, with(name, ""), 422, "header."+name)
			r.refused(o, "a long "+name, with(name, strings.Repeat("x", int(most)+1)), 422, "header."+name)
		case bounded:
			r.refused(o, "a long "+name, with(name, strings.Repeat("x", int(most)+1)), 400, "")
		}
	}
}

// query spoils the parameters.
func (r *rig) query(o *operation) {
	r.t.Helper()
	spoilt := func(query string) request {
		q := r.request(o)
		q.target += "?" + query
		return q
	}
	r.refused(o, "an undocumented parameter", spoilt("undocumented=1"), 422, "query.undocumented")
	r.refused(o, "a malformed query", spoilt("a=%zz"), 400, "")
	for _, p := range o.parameters {
		if p["in"] != "query" {
			continue
		}
		name, schema := p["name"].(string), p["schema"].(object)
		r.refused(o, name+" without a value", spoilt(name+"="), 422, "query."+name)
		if schema["type"] != "array" {
			r.refused(o, name+" twice", spoilt(name+"=1&"+name+"=1"), 422, "query."+name)
		}
		if schema["type"] == "integer" {
			for _, v := range []string{fmt.Sprintf("%.0f", schema["minimum"].(float64)-1), fmt.Sprintf("%.0f", schema["maximum"].(float64)+1), "1.0", "x"} {
				r.refused(o, name+"="+v, spoilt(name+"="+v), 422, "query."+name)
			}
		} else if name != "business_key" && name != "operation" { // which take any text
			r.refused(o, name+" with an invalid value", spoilt(name+"=undocumented"), 422, "query."+name)
		}
	}
}

// whole spoils the path, and the body as a whole.
func (r *rig) whole(o *operation) {
	r.t.Helper()
	if strings.Contains(o.path, "{") {
		q := r.request(o)
		q.target = strings.NewReplacer("{id}", "x", "{payment_data_id}", "x", "{art_id}", "x").Replace(o.path)
		r.refused(o, "an invalid id", q, 404, "")
	}
	if o.needsBody {
		q := r.request(o)
		q.body = ""
		r.refused(o, "no body", q, 400, "")
	}
	for what, body := range map[string]string{
		"a list": "[]", "null": "null", "half an object": `{"a":`, "a member twice": `{"a":1,"a":1}`,
		"deep": `{"a":` + strings.Repeat("[", 8) + strings.Repeat("]", 8) + "}",
		"many": `{"a":[0` + strings.Repeat(",0", 256) + "]}",
	} {
		q := r.request(o)
		q.body = body
		r.refused(o, what, q, 400, "")
	}

	large := r.request(o)
	large.body = "{" + strings.Repeat(" ", forward.MaxBody) + "}"
	r.refused(o, "too large", large, 413, "")
	for _, headers := range [][]string{{"Content-Type", "text/plain"}, {"Content-Type", ""}, {"Content-Type", "application/json; charset=latin1"}, {"Content-Type", "application/json", "Content-Encoding", "gzip"}} {
		q := r.request(o)
		q.body = "{}"
		q.headers = append(q.headers, headers...)
		r.refused(o, fmt.Sprint(headers), q, 415, "")
	}
	unknown := r.request(o)
	given := maps.Clone(o.example)
	if given == nil {
		given = object{}
	}
	given["undocumented"] = 1
	unknown.body = encode(given)
	r.refused(o, "an undocumented member", unknown, 422, "undocumented")
}

// members spoils each member of a body, or of an object in it.
func (r *rig) members(c *contract, o *operation, prefix string, schema object, into func(object) object) {
	r.t.Helper()
	if schema == nil {
		return
	}
	example := o.example
	if into == nil {
		into = func(given object) object { return given }
	} else {
		var given bool
		if example, given = o.example[strings.TrimSuffix(prefix, ".")].(object); !given {
			return
		}
	}
	send := func(what, name string, change func(given object)) {
		r.t.Helper()
		given := maps.Clone(example)
		change(given)
		q := r.request(o)
		q.body = encode(into(given))
		r.refused(o, what, q, 422, prefix+name)
	}

	required := list(schema["required"])
	for name, node := range schema["properties"].(object) {
		if slices.Contains(required, any(name)) {
			send("without "+name, name, func(given object) { delete(given, name) })
		}
		p := c.follow(node)
		types := list(p["type"])
		if types == nil {
			types = []any{p["type"]}
		}
		for what, value := range spoilt(p, types) {
			if accepted[prefix+name+" "+what] {
				continue
			}
			send(name+" "+what, name, func(given object) { given[name] = value })
		}
		if p["type"] == "object" {
			r.members(c, o, prefix+name+".", p, func(given object) object {
				outer := maps.Clone(o.example)
				outer[name] = given
				return outer
			})
		}
	}
}

// accepted lists spoilt members of a forward that are valid.
var accepted = map[string]bool{
	"request.body empty": true, "request.body blank": true, // any text is a body
	"payment_data as null": true, // absent
}

// spoilt returns values that a property does not accept.
func spoilt(p object, types []any) map[string]any {
	values := map[string]any{}
	for _, v := range []struct {
		of    string
		value any
	}{{"string", "text"}, {"integer", 7}, {"boolean", true}, {"array", []any{}}, {"object", object{}}} {
		if !slices.Contains(types, any(v.of)) {
			values["as "+v.of] = v.value
		}
	}
	if !slices.Contains(types, any("null")) {
		values["as null"] = nil
	}

	if slices.Contains(types, any("string")) {
		values["empty"] = ""
		values["blank"] = " "
		if most, ok := p["maxLength"].(float64); ok {
			values["too long"] = strings.Repeat("1", int(most)+1)
		}
		if p["enum"] != nil || p["pattern"] != nil {
			values["of no form"] = "\u0007"
		}
	}
	if low, ok := p["minimum"].(float64); ok {
		values["too small"] = json.Number(fmt.Sprintf("%.0f", low-1))
	}
	if high, ok := p["maximum"].(float64); ok {
		values["too large"] = json.Number(fmt.Sprintf("%.0f", high+1))
		values["a fraction"] = json.Number("4.5")
	}
	if slices.Contains(types, any("array")) {
		values["without items"] = []any{}
		values["with a wrong item"] = []any{"undocumented"}
		values["with null"] = []any{nil}
	}
	return values
}

// methods sends undocumented methods to each path.
func (r *rig) methods(c *contract) {
	r.t.Helper()
	for path, item := range c.root["paths"].(object) {
		var allowed []string
		for _, m := range []string{"GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"} {
			documented := item.(object)[strings.ToLower(m)] != nil
			if documented || m == "HEAD" && item.(object)["get"] != nil {
				allowed = append(allowed, m)
			}
		}
		for _, m := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} {
			if slices.Contains(allowed, m) {
				continue
			}
			a := transcript.Send(r.t, r.handler, m, strings.NewReplacer("{id}", r.token, "{payment_data_id}", r.token, "{art_id}", r.token).Replace(path), "")
			if got := a.Header.Get("Allow"); a.Status != 405 || got != strings.Join(allowed, ", ") {
				r.t.Errorf("%s %s: %d, Allow %q, want %q", m, path, a.Status, got, allowed)
			}
		}
	}
}
