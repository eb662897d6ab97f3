package reference_test

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/examples/internal/reference"
	"github.com/cardvault/cardvault/httpapi"
)

func render(t *testing.T, document string) string {
	t.Helper()
	page, err := reference.Page([]byte(document), &reference.Options{
		Home: "/", BaseURL: "http://127.0.0.1:8080", Files: "/sandbox/", Style: "/sandbox/page.css", Icon: "/sandbox/icon.svg",
		API: "/sandbox/api", Scopes: []string{"tokens:read"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

var (
	ids   = regexp.MustCompile(` id="([^"]*)"`)
	links = regexp.MustCompile(` href="#([^"]*)"`)
	named = regexp.MustCompile(` aria-labelledby="([^"]*)"`)
)

// TestContract shows the whole contract of the REST API: every operation, member, status
// and event. No link is dead.
func TestContract(t *testing.T) {
	_, contract := httpapi.OpenAPI()
	page := render(t, string(contract))

	var have []string
	for _, m := range ids.FindAllStringSubmatch(page, -1) {
		if slices.Contains(have, m[1]) {
			t.Errorf("two elements have the id %s", m[1])
		}
		have = append(have, m[1])
	}
	for _, m := range slices.Concat(links.FindAllStringSubmatch(page, -1), named.FindAllStringSubmatch(page, -1)) {
		id, err := url.PathUnescape(html.UnescapeString(m[1]))
		if err != nil || !slices.Contains(have, id) {
			t.Errorf("nothing has the id %s: %v", id, err)
		}
	}

	var document map[string]any
	if err := json.Unmarshal(contract, &document); err != nil {
		t.Fatal(err)
	}
	shown := namesOf(document, "")
	text := html.UnescapeString(page)
	for _, name := range shown {
		if !strings.Contains(text, name) {
			t.Errorf("the page does not have %q", name)
		}
	}
	if len(shown) < 1000 {
		t.Errorf("%d names were found", len(shown))
	}
}

// TestConstants: a constant without a type has the type of its value.
func TestConstants(t *testing.T) {
	page := render(t, `{"openapi":"3.1.1","info":{"title":"T","version":"1"},"paths":{},"components":{"schemas":{"S":{"type":"object","properties":
		{"n":{"const":0},"s":{"const":"0"},"b":{"const":false}}}}}}`)
	for name, want := range map[string]string{"n": "integer", "s": "string", "b": "boolean"} {
		if !strings.Contains(page, `<code class="name">`+name+`</code> <span class="quiet">`+want+`</span>`) {
			t.Errorf("%s is no %s", name, want)
		}
	}
}

// namesOf returns the names shown for a part of a document.
func namesOf(part any, of string) (names []string) {
	switch part := part.(type) {
	case map[string]any:
		for name, value := range part {
			if of == "value" || of == "example" || of == "license" {
				return nil
			}
			if of == "properties" || of == "paths" || of == "webhooks" || of == "schemas" || of == "responses" && name[0] <= '5' {
				names = append(names, name)
			}
			names = append(names, namesOf(value, name)...)
		}
	case []any:
		for _, value := range part {
			names = append(names, namesOf(value, of)...)
		}
	case string:
		if slices.Contains([]string{"operationId", "summary", "name", "enum", "const", "apiKey"}, of) {
			names = append(names, part)
		}
	}
	return names
}

// TestNothingInline: the page works under a strict Content-Security-Policy.
func TestNothingInline(t *testing.T) {
	_, contract := httpapi.OpenAPI()
	page := render(t, string(contract))
	if m := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<script(?: type="module")?>|<script[^>]+src="[^/]`).FindString(page); m != "" {
		t.Errorf("the page has %q", m)
	}
	for _, m := range regexp.MustCompile(` (?:src|href)="([^"#][^"]*)"`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(m[1], "/") && m[1] != "https://www.standardwebhooks.com" {
			t.Errorf("the page leads to %s", m[1])
		}
	}
}

// TestTry offers to try exactly the operations that the page's cookie allows.
func TestTry(t *testing.T) {
	_, contract := httpapi.OpenAPI()
	page := render(t, string(contract))
	for _, part := range strings.Split(page, `<article id="operation/`)[1:] {
		id, part, _ := strings.Cut(part, `"`)
		want := slices.Contains([]string{"listTokens", "getToken", "getCardArt", "getSession", "completeSession"}, id)
		if got := strings.Contains(part, "<form "); got != want {
			t.Errorf("%s can be tried: %t", id, got)
		}
	}
}

// document is a small document with one description.
func document(description string) string {
	return `{"openapi":"3.1.1","info":{"title":"T","version":"1","description":` + description + `},"tags":[{"name":"A"}],"paths":{"/a":{"get":{"operationId":"a","tags":["A"],"responses":{}}}}}`
}

// TestMarkdown turns Markdown into HTML, and lets no other markup through.
func TestMarkdown(t *testing.T) {
	for markdown, want := range map[string]string{
		`"a\nb\n\nc"`:                         "<p>a b</p>\n<p>c</p>\n",
		`"# A b\n## C"`:                       `<h2 id="section/A-b">A b</h2>` + "\n" + `<h3 id="section/C">C</h3>`,
		"\"a `b<c` **d** [e](#section/f)\"":   `<p>a <code>b&lt;c</code> <strong>d</strong> <a href="#section/f">e</a></p>`,
		`"- a\n  b\n- c\n\nd"`:                "<ul>\n<li>a b</li>\n<li>c</li>\n</ul>\n<p>d</p>",
		`"1. a\n2. b"`:                        "<ol>\n<li>a</li>\n<li>b</li>\n</ol>",
		"\"```sh\\n<a>\\n\\n# b\\n```\\nc\"":  "<pre><code>&lt;a&gt;\n\n# b</code></pre>\n<p>c</p>",
		"\"```\\nno end\"":                    "<pre><code>no end</code></pre>",
		`"| A | B |\n|---|---|\n| c | <d> |"`: "<tr><th>A</th><th>B</th></tr>\n<tr><td>c</td><td>&lt;d&gt;</td></tr>",
		`"<script>alert(1)</script>"`:         "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>",
		`"[a](javascript:alert(1))"`:          "<p>a)</p>",
		`"[a](https://e.example/\"x)"`:        `<a href="https://e.example/&#34;x">a</a>`,
	} {
		if page := render(t, document(markdown)); !strings.Contains(page, want) {
			_, guide, _ := strings.Cut(page, `class="lead"`)
			t.Errorf("%s is not %s: %.600s", markdown, want, guide)
		}
	}
}

// TestNoDocument refuses text that is not a document, and ends on circular references.
func TestNoDocument(t *testing.T) {
	for _, text := range []string{"", "{}", "[]", "x", `{"openapi":"3.1.1"}`, document(`""`) + "x", document(`""`)[1:]} {
		if _, err := reference.Page([]byte(text), &reference.Options{}); err == nil {
			t.Errorf("%.40s is shown", text)
		}
	}
	round := strings.Replace(document(`""`), `"responses":{}`, `"responses":{"200":{"$ref":"#/components/responses/R"},"201":{"$ref":"#/nothing"}},"requestBody":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/S"}}}}`, 1)
	round = strings.TrimSuffix(round, "}") + `,"components":{"responses":{"R":{"$ref":"#/components/responses/R"}},"schemas":{"S":{"type":"object","properties":{"s":{"$ref":"#/components/schemas/S"}}}}}}`
	if page := render(t, round); !strings.Contains(page, `id="operation/a"`) {
		t.Error("a circular document is not shown")
	}
}
