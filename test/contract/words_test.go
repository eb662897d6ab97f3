package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/httpapi"
	"github.com/cardvault/cardvault/network"
)

// constants returns the values of a type's constants in a file, or the classifier fields of
// its literals.
func constants(t *testing.T, file, of string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "../../"+file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	add := func(value ast.Expr) {
		if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			found[text] = true
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if name, ok := n.Type.(*ast.Ident); ok && name.Name == of {
				for _, value := range n.Values {
					add(value)
				}
			}
		case *ast.KeyValueExpr:
			if name, ok := n.Key.(*ast.Ident); ok && name.Name == of {
				add(n.Value)
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(found))
}

// TestWords compares enumerations of the contract with the constants of the code: not all
// of them occur in a test.
func TestWords(t *testing.T) {
	_, text := httpapi.OpenAPI()
	c := newChecker(t, text)
	enum := func(pointer string) (all []string) {
		for _, word := range c.resolve(c.at(pointer))["enum"].([]any) {
			all = append(all, word.(string))
		}
		slices.Sort(all)
		return all
	}
	without := func(all []string, leave ...string) []string {
		return slices.DeleteFunc(all, func(word string) bool { return slices.Contains(leave, word) })
	}

	var scopes, reasons []string
	for _, s := range cardvault.AllScopes() {
		scopes = append(scopes, string(s))
	}
	slices.Sort(scopes)
	for _, event := range []string{"TokenCreated", "TokenUpdated", "TokenDeleted"} {
		reasons = append(reasons, enum("#/components/schemas/"+event+"/properties/reason")...)
	}
	slices.Sort(reasons)

	// A payment fails because of the configuration, the state of its token, or the network.
	var ofStatus, ofPayments []string
	for _, code := range constants(t, "network/code.go", "Code") {
		source := network.SourceOf(network.Code(code))
		if source != 0 {
			ofStatus = append(ofStatus, code)
		}
		if source != network.SourceScheme || code == "scheme_unavailable" || code == "timeout" {
			ofPayments = append(ofPayments, code)
		}
	}
	for _, test := range []struct {
		what      string
		got, want []string
	}{
		{"scopes", enum("#/components/schemas/Scope"), scopes},
		{"codes of failures", enum("#/components/schemas/FailureDetail/properties/code"), ofPayments},
		{"codes of reasons", enum("#/components/schemas/StatusReason/properties/code"), ofStatus},
		{"classifiers", enum("#/components/schemas/Error/properties/classifier"), constants(t, "httpapi/errors.go", "classifier")},
		// Imports and updates accept expired cards.
		{"codes of violations", enum("#/components/schemas/Violation/properties/code"), without(constants(t, "invalid/invalid.go", "Code"), "card_expired")},
		{"codes of sessions", enum("#/components/schemas/FailedSession/properties/data/properties/reason_code"), constants(t, "session.go", "Refusal")},
		{"types of events", enum("#/components/schemas/EventType"), without(constants(t, "receive/event.go", "EventType"), "webhook.test")},
		{"reasons of events", reasons, constants(t, "receive/event.go", "EventReason")},
		{"reasons of webhooks", without(enumOrNull(c, "#/components/schemas/Webhook/properties/disabled_reason"), ""), append([]string{"failing", "gone"}, constants(t, "webhook.go", "DisabledReason")...)},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: the contract has %v, the code %v", test.what, test.got, test.want)
		}
	}
}

// enumOrNull returns the words of an enumeration, "" for null.
func enumOrNull(c *checker, pointer string) (all []string) {
	for _, word := range words(c.resolve(c.at(pointer))) {
		text, _ := word.(string)
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}
