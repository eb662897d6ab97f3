package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/httpapi"
	"github.com/pb33f/jsonschema/v6"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
)

// TestCommitted compares the committed and served JSON with a conversion of the YAML.
func TestCommitted(t *testing.T) {
	text, made := httpapi.OpenAPI()
	want, err := convert(text)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, want) {
		t.Error("httpapi/openapi.json is not what httpapi/openapi.yaml gives: go run -C test ./contract")
	}
}

// TestDocument validates the contract against the schema of OpenAPI 3.1.
func TestDocument(t *testing.T) {
	_, text := httpapi.OpenAPI()
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(document)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if _, errs := v.ValidateDocument(); len(errs) > 0 {
		for _, err := range errs {
			t.Errorf("%s: %s %v", err.Message, err.Reason, err.SchemaValidationErrors)
		}
	}
}

// TestRequestsAreClosed: the contract says that the server refuses unknown members. Answers
// are open, because they may have new ones later.
func TestRequestsAreClosed(t *testing.T) {
	_, text := httpapi.OpenAPI()
	c := new(checker)
	if err := json.Unmarshal(text, &c.root); err != nil {
		t.Fatal(err)
	}
	var inside func(where string, node any)
	inside = func(where string, node any) {
		schema := c.resolve(node)
		if _, free := schema["additionalProperties"].(map[string]any); free && schema["properties"] == nil {
			return // the names are the caller's
		}
		if schema["type"] == "object" && schema["additionalProperties"] != false {
			t.Errorf("%s accepts any member", where)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, p := range properties {
			inside(where+"."+name, p)
		}
	}
	for _, o := range c.operations() {
		if schema := c.requestSchema(o); schema != nil {
			inside(o.id, schema)
		}
	}

	for name, schema := range c.root["components"].(map[string]any)["schemas"].(map[string]any) {
		closed := schema.(map[string]any)["additionalProperties"] == false
		if asked := strings.HasSuffix(name, "Request") || strings.HasSuffix(name, "Update"); closed != asked {
			t.Errorf("%s: closed is %v", name, closed)
		}
	}
}

// TestExamples validates the examples of bodies against their schemas.
func TestExamples(t *testing.T) {
	_, text := httpapi.OpenAPI()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(closed(t, text)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("file:///openapi.json", document); err != nil {
		t.Fatal(err)
	}

	count := 0
	walk(document, "", func(at string, object map[string]any) {
		if object["schema"] == nil {
			return
		}
		examples, _ := object["examples"].(map[string]any)
		for name, example := range examples {
			count++
			schema, err := c.Compile("file:///openapi.json#" + at + "/schema")
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(example.(map[string]any)["value"]); err != nil {
				t.Errorf("%s, example %s: %v", at, name, err)
			}
		}
	})
	if count < 30 {
		t.Errorf("there are %d examples", count)
	}
}

// walk calls f with each object of a document and its JSON pointer.
func walk(value any, at string, f func(at string, object map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		f(at, value)
		for name, v := range value {
			walk(v, at+"/"+strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(name), f)
		}
	case []any:
		for i, v := range value {
			walk(v, at+"/"+string(rune('0'+i%10)), f)
		}
	}
}

// closed returns a document whose objects allow only the members that they list. Clients
// must ignore other members, and the server must not send any.
func closed(t *testing.T, text []byte) []byte {
	t.Helper()
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	walk(document, "", func(_ string, object map[string]any) {
		if _, named := object["properties"].(map[string]any); named && object["type"] == "object" && object["additionalProperties"] == nil {
			object["additionalProperties"] = false
		}
	})
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
