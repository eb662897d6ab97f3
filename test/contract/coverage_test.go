package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// noteAnswer notes the parts of the contract that an answer shows.
func (c *checker) noteAnswer(o *operation, x *exchange, code string) {
	node, ok := o.object["responses"].(map[string]any)[code]
	if !ok {
		code = code[:1] + "XX"
		node = o.object["responses"].(map[string]any)[code]
	}
	c.note("%s answers %s", o.id, code)
	where := nameOf(node, o.id+" "+code)
	documented := c.resolve(node)
	headers, _ := documented["headers"].(map[string]any)
	for name := range headers {
		if x.answer.Header()[http.CanonicalHeaderKey(name)] != nil {
			c.note("header %s of %s", name, where)
		}
	}

	content, _ := documented["content"].(map[string]any)
	media, _ := content["application/json"].(map[string]any)
	var value any
	if media["schema"] != nil && json.Unmarshal(x.answer.Body.Bytes(), &value) == nil {
		c.noteValue(where, media["schema"], value)
	}
}

// noteRequest notes the parts of the contract that an accepted request uses.
func (c *checker) noteRequest(o *operation, x *exchange) {
	query := x.request.URL.Query()
	for _, p := range o.parameters {
		name := p["name"].(string)
		if p["in"] == "query" && query.Has(name) || p["in"] == "header" && x.request.Header[http.CanonicalHeaderKey(name)] != nil {
			c.note("parameter %s of %s", name, o.id)
		}
	}
	var value any
	if schema := c.requestSchema(o); schema != nil && json.Unmarshal(x.body, &value) == nil {
		c.noteValue(o.id, schema, value)
	}
}

// requestSchema returns the schema of a body, or nil.
func (c *checker) requestSchema(o *operation) any {
	body, _ := o.object["requestBody"].(map[string]any)
	if body == nil {
		return nil
	}
	return body["content"].(map[string]any)["application/json"].(map[string]any)["schema"]
}

func nameOf(node any, otherwise string) string {
	if object, ok := node.(map[string]any); ok {
		if pointer, ok := object["$ref"].(string); ok {
			return strings.TrimPrefix(pointer, "#/components/")
		}
	}
	return otherwise
}

// noteValue notes the members of a value, and its values of enumerations.
func (c *checker) noteValue(where string, node, value any) {
	where = nameOf(node, where)
	schema := c.resolve(node)
	for _, word := range words(schema) {
		if word == value {
			c.note("value %v of %s", word, where)
		}
	}

	for i, branch := range branches(schema) {
		if schema["oneOf"] == nil || c.fits(branch, value) {
			c.noteValue(fmt.Sprintf("%s, %d", where, i), branch, value)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	if object, ok := value.(map[string]any); ok {
		for name, v := range object {
			if properties[name] == nil {
				continue
			}
			if v != nil {
				c.note("member %s of %s", name, where)
			}
			c.noteValue(where+"."+name, properties[name], v)
		}
	}
	if list, ok := value.([]any); ok {
		for _, v := range list {
			c.noteValue(where+"[]", schema["items"], v)
		}
	}
}

// fits reports whether a value has the members of a branch, with their constants.
func (c *checker) fits(branch, value any) bool {
	schema := c.resolve(branch)
	if schema["type"] == "null" {
		return value == nil
	}
	object, ok := value.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	for name, v := range object {
		p := c.resolve(properties[name])
		ok = ok && p != nil && (p["const"] == nil || p["const"] == v)
		if inner, isObject := v.(map[string]any); ok && isObject && p["type"] == "object" {
			ok = c.fits(p, inner)
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		_, given := object[name.(string)]
		ok = ok && given
	}
	return ok
}

// words returns the values of an enumeration or constant.
func words(schema map[string]any) []any {
	if word, ok := schema["const"]; ok {
		return []any{word}
	}
	all, _ := schema["enum"].([]any)
	return all
}

func branches(schema map[string]any) []any {
	if all, ok := schema["oneOf"].([]any); ok {
		return all
	}
	all, _ := schema["allOf"].([]any)
	return all
}

// documented returns everything that note must be called with.
func (c *checker) documented() []string {
	all := map[string]bool{}
	add := func(format string, args ...any) { all[fmt.Sprintf(format, args...)] = true }
	for _, o := range c.operations() {
		for code, node := range o.object["responses"].(map[string]any) {
			where := nameOf(node, o.id+" "+code)
			add("%s answers %s", o.id, code)
			documented := c.resolve(node)
			headers, _ := documented["headers"].(map[string]any)
			for name := range headers {
				add("header %s of %s", name, where)
			}
			content, _ := documented["content"].(map[string]any)
			if media, _ := content["application/json"].(map[string]any); media["schema"] != nil {
				c.inSchema(add, map[string]bool{}, where, media["schema"])
			}
		}
		for _, p := range o.parameters {
			if p["in"] != "path" && !o.lax {
				add("parameter %s of %s", p["name"], o.id)
			}
		}
		if schema := c.requestSchema(o); schema != nil {
			c.inSchema(add, map[string]bool{}, o.id, schema)
		}
	}

	for _, item := range c.root["webhooks"].(map[string]any) {
		o := item.(map[string]any)["post"].(map[string]any)
		media := o["requestBody"].(map[string]any)["content"].(map[string]any)["application/json"]
		c.inSchema(add, map[string]bool{}, "", media.(map[string]any)["schema"])
		for _, p := range o["parameters"].([]any) {
			add("parameter %s of %s", c.resolve(p)["name"], o["operationId"])
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// inSchema adds the members of a schema, and its values of enumerations.
func (c *checker) inSchema(add func(string, ...any), above map[string]bool, where string, node any) {
	where = nameOf(node, where)
	schema := c.resolve(node)
	if schema == nil || above[where] {
		return
	}
	above[where] = true
	for _, word := range words(schema) {
		add("value %v of %s", word, where)
	}
	for i, branch := range branches(schema) {
		c.inSchema(add, above, fmt.Sprintf("%s, %d", where, i), branch)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		if c.resolve(p)["type"] != "null" {
			add("member %s of %s", name, where)
		}
		c.inSchema(add, above, where+"."+name, p)
	}
	if items, ok := schema["items"]; ok {
		c.inSchema(add, above, where+"[]", items)
	}
}

// checkCoverage compares the documented parts with the noted ones.
func (c *checker) checkCoverage(t *testing.T) {
	documented := c.documented()
	for _, what := range documented {
		reason := ""
		for pattern, why := range unseen {
			if strings.Contains(what, pattern) {
				reason = why
			}
		}
		if !c.seen[what] && reason == "" {
			t.Errorf("documented, and never seen: %s", what)
		}
	}
	for pattern := range unseen {
		if !slices.ContainsFunc(documented, func(what string) bool { return strings.Contains(what, pattern) && !c.seen[what] }) {
			t.Errorf("seen unexpectedly, or not documented: %s", pattern)
		}
	}
}

// unseen lists parts that neither transcripts nor random requests show, with reasons.
var unseen = map[string]string{
	"of schemas/StatusReason.code":                    "the simulator is not an issuer; TestWords compares the codes",
	"of schemas/FailureDetail.code":                   "likewise",
	"of schemas/AuthenticationData.method":            "the simulator identifies by 3-D Secure alone",
	"member damaged of":                               "the transcripts damage a token, and all pages are made alike",
	"value failing of":                                "after five days without success",
	"consumeToken answers 409":                        "while a shared cache of codes hangs, which vaultsuite causes",
	"value CARD_REPLACED of":                          "calls at the same time; TestReplaceConflict of httpapi causes it",
	"value ACCOUNT_FROZEN of":                         "an act of the operator; TestAccountEnds of httpapi causes it",
	"IDEMPOTENCY_IN_PROGRESS of forward 409":          "time stands still while a socket is open; tests of httpapi cause it",
	"header Retry-After of forward 409":               "likewise",
	"parameter x-api-version of forward":              "random requests reach no destination",
	"parameter x-idempotency-key of forward":          "likewise",
	"parameter x-request-id of forward":               "likewise",
	"of schemas/ForwardRequest.request.method":        "likewise",
	"MALFORMED_REQUEST of responses/PreflightRefused": "a body that breaks off",
	"value failed of schemas/AuditRecord":             "a fault of the vault, whose records are read later",
	"member name of schemas/AuditRecord.actor":        "only other Authenticators name callers",
}
