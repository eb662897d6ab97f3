package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/pb33f/jsonschema/v6"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi-validator/responses"
)

// A checker checks exchanges against the contract, and records the parts of the contract
// that occurred.
type checker struct {
	root      map[string]any // the document, closed
	validator validator.Validator
	document  libopenapi.Document
	compiler  *jsonschema.Compiler

	mu   sync.Mutex
	seen map[string]bool // recorded by note
	said map[string]int  // number of each complaint
}

func newChecker(t *testing.T, text []byte) *checker {
	t.Helper()
	c := &checker{seen: map[string]bool{}, said: map[string]int{}}
	text = closed(t, text)
	if err := json.Unmarshal(text, &c.root); err != nil {
		t.Fatal(err)
	}

	// These paths begin at the root of the host.
	c.root["servers"] = []any{map[string]any{"url": "/"}}
	text, err := json.Marshal(c.root)
	if err != nil {
		t.Fatal(err)
	}
	if c.document, err = libopenapi.NewDocument(text); err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(c.document, config.WithStrictMode(), config.WithFormatAssertions(), config.WithRejectUndeclaredRequestBody(),
		config.WithStrictIgnorePaths("$.body.request.headers.*", "$.body.headers.*")) // headers of a forward, by any name
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	c.validator = v

	plain, err := unmarshal(text)
	if err != nil {
		t.Fatal(err)
	}
	c.compiler = jsonschema.NewCompiler()
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource("file:///openapi.json", plain); err != nil {
		t.Fatal(err)
	}
	return c
}

// An operation is an operation of the contract.
type operation struct {
	path, method string
	id           string
	object       map[string]any
	parameters   []map[string]any // of path and operation, resolved
	lax          bool             // it reads neither query nor body
}

// operations returns all operations of the contract, in order.
func (c *checker) operations() (all []*operation) {
	paths := c.root["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path].(map[string]any)
		for _, method := range []string{"get", "post", "patch", "delete", "options"} {
			object, ok := item[method].(map[string]any)
			if !ok {
				continue
			}
			o := &operation{path: path, method: strings.ToUpper(method), id: object["operationId"].(string), object: object}
			tag := object["tags"].([]any)[0]
			o.lax = tag == "Card entry" || tag == "Contract" || method == "options"
			for _, list := range []any{item["parameters"], object["parameters"]} {
				given, _ := list.([]any)
				for _, p := range given {
					o.parameters = append(o.parameters, c.resolve(p))
				}
			}
			all = append(all, o)
		}
	}
	return all
}

// resolve follows the references of a node, which may have siblings.
func (c *checker) resolve(node any) map[string]any {
	object, _ := node.(map[string]any)
	pointer, ok := object["$ref"].(string)
	if !ok {
		return object
	}
	return c.resolve(c.at(pointer))
}

func (c *checker) at(pointer string) any {
	var node any = c.root
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "#/"), "/") {
		node = node.(map[string]any)[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	return node
}

// operation returns a request's operation, or nil. From the left, a literal beats an id.
func (c *checker) operation(all []*operation, r *http.Request) (found *operation) {
	if r.URL.RawPath != "" {
		return nil
	}
	method := r.Method
	if method == "HEAD" {
		method = "GET"
	}
	given, best := strings.Split(r.URL.Path, "/"), ""
	for _, o := range all {
		parts := strings.Split(o.path, "/")
		fits, rank := len(parts) == len(given), "-" // has an l for each literal, which beats i
		for i := 0; fits && i < len(parts); i++ {
			if strings.HasPrefix(parts[i], "{") {
				fits, rank = given[i] != "", rank+"i"
			} else {
				fits, rank = parts[i] == given[i], rank+"l"
			}
		}
		if !fits || rank < best {
			continue
		}
		if rank > best {
			found, best = nil, rank
		}
		if o.method == method {
			found = o
		}
	}
	return found
}

// An exchange is a request, its body as received, and the answer.
type exchange struct {
	request *http.Request
	body    []byte
	answer  *httptest.ResponseRecorder
}

// wrap returns a handler that passes on to h and checks the answers. It reports complaints
// to t.
func (c *checker) wrap(t testing.TB, h http.Handler, then func(*exchange)) http.Handler {
	all := c.operations()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("a body cannot be read: %v", err)
		}
		asked := r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		x := &exchange{asked, body, httptest.NewRecorder()}
		h.ServeHTTP(x.answer, r)

		for _, complaint := range c.check(all, x) {
			c.complain(t, x, complaint)
		}
		if then != nil {
			then(x)
		}
		maps.Copy(w.Header(), x.answer.Header())
		w.WriteHeader(x.answer.Code)
		_, _ = w.Write(x.answer.Body.Bytes())
	})
}

// complain reports a complaint, each kind a few times.
func (c *checker) complain(t testing.TB, x *exchange, complaint string) {
	t.Helper()
	c.mu.Lock()
	c.said[complaint]++
	n := c.said[complaint]
	c.mu.Unlock()
	if n <= 2 {
		t.Errorf("%s %s %v %.300q\n%d %v %.600s\n%s", x.request.Method, x.request.URL, x.request.Header, x.body, x.answer.Code, x.answer.Header(), x.answer.Body, complaint)
	} else {
		t.Fail()
	}
}

func (c *checker) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[fmt.Sprintf(format, args...)] = true
}

// check returns the violations of an exchange.
func (c *checker) check(all []*operation, x *exchange) (complaints []string) {
	o := c.operation(all, x.request)
	if o == nil {
		return c.checkNone(x)
	}

	complaints = c.checkAnswer(o, x)
	if o.lax {
		return complaints
	}
	if refused := c.refusal(o, x); refused != "" {
		// During an identification, the body of a completion is not read.
		identifying := o.id == "completeSession" && bytes.Contains(x.answer.Body.Bytes(), []byte(`"next_action":"`)) && !bytes.Contains(x.answer.Body.Bytes(), []byte(`"status"`))
		if x.answer.Code < 400 && !identifying {
			complaints = append(complaints, "the contract refuses what the server takes: "+refused)
		}
	} else if why := unexplained(x); why != "" {
		complaints = append(complaints, "the contract takes what the server refuses: "+why)
	}
	if x.answer.Code < 300 && len(complaints) == 0 {
		c.noteRequest(o, x)
	}
	return complaints
}

// checkNone checks the answer to a request without an operation.
func (c *checker) checkNone(x *exchange) []string {
	allow := x.answer.Header().Get("Allow")
	switch code := x.answer.Code; {
	case code != 404 && code != 405 || code == 405 && allow == "":
		return []string{fmt.Sprintf("a request without an operation is answered with %d, Allow %q", code, allow)}
	case x.request.Method == "HEAD":
		return nil
	}
	value, err := unmarshal(x.answer.Body.Bytes())
	if err == nil {
		err = c.schema("#/components/schemas/Error").Validate(value)
	}
	if err != nil {
		return []string{err.Error()}
	}
	c.noteValue("", map[string]any{"$ref": "#/components/schemas/Error"}, value)
	return nil
}

func unmarshal(text []byte) (any, error) { return jsonschema.UnmarshalJSON(bytes.NewReader(text)) }

func (c *checker) schema(pointer string) *jsonschema.Schema {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.compiler.Compile("file:///openapi.json" + pointer)
	if err != nil {
		panic(err)
	}
	return s
}

// checkAnswer checks status, headers and body of an answer.
func (c *checker) checkAnswer(o *operation, x *exchange) (complaints []string) {
	r := x.request.Clone(x.request.Context())
	r.Method = o.method
	result := x.answer.Result()
	result.Body = io.NopCloser(bytes.NewReader(x.answer.Body.Bytes()))
	code := fmt.Sprint(x.answer.Code)

	var errs []*errors.ValidationError
	if x.request.Method == "HEAD" {
		model, err := c.document.BuildV3Model()
		if err != nil {
			return []string{err.Error()}
		}
		documented := model.Model.Paths.PathItems.GetOrZero(o.path).Get.Responses.Codes.GetOrZero(code)
		if documented == nil {
			return []string{"status " + code + " is not documented"}
		}
		if x.answer.Body.Len() > 0 {
			return []string{"HEAD is answered with a body"}
		}
		_, errs = responses.ValidateResponseHeaders(r, result, documented.Headers, o.path, code, config.WithStrictMode())
	} else {
		if strings.HasPrefix(result.Header.Get("Content-Type"), "application/x-ndjson") {
			complaints = c.checkLines(x.answer.Body.Bytes())
			result.Body = io.NopCloser(strings.NewReader(`"lines"`)) // which is what the schema says of them
		}
		_, errs = c.validator.ValidateHttpResponse(r, result)
	}
	for _, err := range errs {
		complaints = append(complaints, complaintOf(err))
	}
	if len(errs) == 0 {
		c.noteAnswer(o, x, code)
	}
	return complaints
}

// checkLines checks lines of JSON: audit records, and at the end perhaps ids of damaged ones.
func (c *checker) checkLines(body []byte) (complaints []string) {
	record := c.schema("#/components/schemas/AuditRecord")
	for line := range bytes.Lines(body) {
		value, err := unmarshal(line)
		if err == nil && !bytes.HasPrefix(line, []byte(`{"damaged":`)) {
			err = record.Validate(value)
		}
		if err != nil {
			complaints = append(complaints, fmt.Sprintf("line %s: %v", line, err))
		}
	}
	return complaints
}

func complaintOf(err *errors.ValidationError) string {
	text := err.Message + ": " + err.Reason
	for _, e := range err.SchemaValidationErrors {
		text += fmt.Sprintf("; %s %s", e.FieldPath, e.Reason)
	}
	return text
}

// refusal returns the contract's reason for refusing a request, or "". It includes rules
// that the contract has in words, because no schema can express them.
func (c *checker) refusal(o *operation, x *exchange) string {
	query, err := url.ParseQuery(x.request.URL.RawQuery)
	if err != nil {
		return err.Error()
	}
	for name, values := range query {
		list := name == "network_token_status" || name == "scheme"
		if len(values) > 1 && !list {
			return name + " is repeated"
		}
		if list { // may be repeated, and spaces do not count
			items := strings.Split(strings.Join(values, ","), ",")
			for i := range items {
				items[i] = strings.Trim(items[i], " ")
			}
			query.Set(name, strings.Join(items, ","))
		}
	}

	r := x.request.Clone(x.request.Context())
	r.Method = o.method
	r.URL.RawQuery = query.Encode()
	if why := onlyDocumentedHeaders(o, r.Header); why != "" {
		return why
	}

	body := bytes.TrimSpace(x.body)
	none := o.object["requestBody"] == nil && string(body) == "{}" && r.Header.Get("Content-Type") != ""
	if len(x.body) == 0 || none {
		r.Body, r.ContentLength = http.NoBody, 0
		r.Header.Del("Content-Type")
	} else {
		if !jsontext.Value(body).IsValid() {
			return "the body is not JSON, or has a member twice"
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	}
	if ok, errs := c.validator.ValidateHttpRequestSync(r); !ok {
		return complaintOf(errs[0])
	}
	return ""
}

// onlyDocumentedHeaders removes the headers that an operation does not read. It returns an
// error in the others, or "".
func onlyDocumentedHeaders(o *operation, h http.Header) string {
	keep := map[string]bool{"Content-Type": true}
	if public, ok := o.object["security"].([]any); !ok || len(public) > 0 {
		keep["X-Api-Key"] = true
	}
	for _, p := range o.parameters {
		if p["in"] == "header" {
			keep[http.CanonicalHeaderKey(p["name"].(string))] = true
		}
	}
	for name, values := range h {
		switch {
		case !keep[name]:
			delete(h, name)
		case len(values) > 1 && name != "X-Request-Id" && name != "If-None-Match" && name != "X-Page-Origin":
			return name + " is repeated"
		case values[0] == "" && (name == "X-Api-Version" || strings.HasSuffix(name, "Idempotency-Key")):
			return name + " is empty" // the validator treats it as absent
		}
	}
	if a, b := h.Get("Idempotency-Key"), h.Get("X-Idempotency-Key"); a != b && h["Idempotency-Key"] != nil && h["X-Idempotency-Key"] != nil {
		return "the idempotency keys differ"
	}
	return ""
}

// semantic lists codes of violations that no schema can express, by the fields that may
// have them.
var semantic = map[string][]string{
	"luhn":                {"account_number"},
	"looks_like_pan":      {"cardholder_name"},
	"unknown_currency":    {"currency_code", "payment_data.currency_code"},
	"unknown_merchant":    {"merchant_id", "payment_data.merchant_id"},
	"undecryptable":       {"result.enc_payload"},
	"invalid_enum":        {"action"}, // of another session
	"depends_on":          {"business_key", "initiator", "payment_data.initiator"},
	"duplicate_parameter": {"request.headers.x-A"},

	"placeholder_not_allowed": {"request.url", "request.headers", "request.body"},
	"unknown_placeholder":     {"request.url", "request.headers", "request.body"},

	"invalid_range":  {"query.from"},
	"out_of_range":   {"address_ranges"},                                                                                                                                           // of the calling key
	"too_long":       {"url", "request.url"},                                                                                                                                       // its limit is in bytes
	"invalid_format": {"account_number", "query.after", "url", "request.url", "request.headers", "request.body", "query.from", "query.to", "result.enc_payload", "address_ranges"}, // a length invalid for the scheme, an invalid target, date or claim
	"not_an_integer": {"amount", "payment_data.amount", "expiration_time", "expiry_month", "expiry_year"},                                                                          // 4.0, an integer in JSON Schema
}

// unexplained returns the server's reason for refusing to read a request that the contract
// accepts, or "".
func unexplained(x *exchange) string {
	switch x.answer.Code {
	case 400:
		if x.request.Method == "HEAD" {
			return ""
		}
		return x.answer.Body.String()
	case 422:
		var failure struct {
			Classifier string
			Violations []struct{ Field, Code string } `json:"validation_errors"`
		}
		if x.request.Method == "HEAD" || json.Unmarshal(x.answer.Body.Bytes(), &failure) != nil || failure.Classifier == "IDEMPOTENCY_KEY_REUSED" {
			return ""
		}
		for _, v := range failure.Violations {
			if !slices.Contains(semantic[v.Code], v.Field) {
				return v.Field + " " + v.Code
			}
		}
	}
	return ""
}
