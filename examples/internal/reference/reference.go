// Package reference shows an OpenAPI document to people, and lets them try its operations
// on the sandbox that serves it. Everything comes from this package: a page needs nothing
// from outside, and no script or style in its HTML.
package reference

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
)

// Files are reference.css and reference.js, which the page loads from Options.Files.
//
//go:embed reference.css reference.js
var Files embed.FS

//go:embed reference.html
var source string

var pageTemplate = template.Must(template.New("reference").Parse(source))

// Options say where a page is.
type Options struct {
	Home    string   // the address of the sandbox
	BaseURL string   // of the REST API, for lines of a shell
	Key     string   // the line of a shell that sets KEY to an API key
	Files   string   // the address below which Files are
	Style   string   // the address of the style that the page shares with the sandbox
	Icon    string   // the address of the icon
	API     string   // the address below which operations are tried, with the cookie of the page
	Scopes  []string // of that cookie
}

// Page returns the page of an OpenAPI document in JSON.
func Page(contract []byte, o *Options) ([]byte, error) {
	d, err := parseDocument(contract)
	if err != nil {
		return nil, err
	}
	p := d.page(o)
	p.Options = o

	var html bytes.Buffer
	if err := pageTemplate.Execute(&html, p); err != nil {
		return nil, fmt.Errorf("reference: %w", err)
	}
	return html.Bytes(), nil
}

type page struct {
	*Options
	Title, Version, Summary string
	Guide                   template.HTML
	Sections                []section
	Common                  []*field // parameters that every operation has
	Headers                 []*field // of answers
	Groups                  []*group
	Events                  []*operation
	Schemas                 []*field
}

// A section is a part of the guide.
type section struct{ ID, Title string }

// A group holds the operations of a tag.
type group struct {
	Name        string
	Description template.HTML
	Operations  []*operation
}

// ID is the id of the group on the page.
func (g *group) ID() string { return "tag/" + strings.ReplaceAll(g.Name, " ", "-") }

type operation struct {
	ID, Method, Path, Summary string
	Description               template.HTML
	Tag                       string
	Scopes                    []string // of the key that it needs
	Open                      bool     // it needs none
	Parameters                []*field
	Body                      *field
	BodyRequired              bool
	Examples                  []example // of the body
	Answers                   []*answer
	Curl                      string
	Try                       bool     // on the page
	Lacks                     []string // scopes that the page would need for that
}

// Kind returns the colour of the method, as a class of the style sheet.
func (o *operation) Kind() string {
	return map[string]string{"GET": "busy", "POST": "good", "PATCH": "warn", "DELETE": "bad"}[o.Method]
}

// Given is the body with which a try begins.
func (o *operation) Given() string {
	if len(o.Examples) == 0 {
		return "{}"
	}
	return o.Examples[0].Text
}

// Tried are the parameters that can be given in a try.
func (o *operation) Tried() []*field {
	return slices.DeleteFunc(slices.Clone(o.Parameters), func(f *field) bool {
		return f.In == "header" && f.Name != "Idempotency-Key"
	})
}

// An example is a value as JSON, in lines and in one.
type example struct{ Summary, Text, Line string }

type answer struct {
	Status      string
	Description template.HTML
	Media       []string
	Headers     []*field
	Body        *field
	Classifiers []string // of an error
	Examples    []example
}

// Kind returns the colour of the status.
func (a *answer) Kind() string {
	switch a.Status[0] {
	case '2':
		return "good"
	case '3':
		return "busy"
	case '4', '5':
		return "bad"
	}
	return ""
}

func (d *document) page(o *Options) *page {
	info := d.root.get("info")
	p := &page{
		Title:   info.get("title").text(),
		Version: info.get("version").text(),
		Summary: info.get("summary").text(),
		Guide:   markdown(info.get("description").text()),
	}
	for line := range strings.SplitSeq(info.get("description").text(), "\n") {
		if title, ok := strings.CutPrefix(line, "# "); ok {
			p.Sections = append(p.Sections, section{sectionID(title), title})
		}
	}

	for _, tag := range d.root.get("tags").list() {
		p.Groups = append(p.Groups, &group{Name: tag.get("name").text(), Description: markdown(tag.get("description").text())})
	}
	operations := d.operations(d.root.get("paths"))
	p.Common, p.Headers = common(operations)
	for _, op := range operations {
		op.finish(o)
		for _, g := range p.Groups {
			if g.Name == op.Tag {
				g.Operations = append(g.Operations, op)
			}
		}
	}

	p.Events = d.operations(d.root.get("webhooks"))
	for _, s := range d.root.get("components", "schemas").all() {
		p.Schemas = append(p.Schemas, d.field(s.name, s.value, maxFields))
	}
	return p
}

// Methods of OpenAPI, in the order in which a path shows them.
var methods = []string{"get", "post", "put", "patch", "delete", "options", "head"}

func (d *document) operations(paths *node) (all []*operation) {
	for _, path := range paths.all() {
		for _, method := range methods {
			if n := path.value.get(method); n != nil {
				all = append(all, d.operation(path.name, method, path.value, n))
			}
		}
	}
	return all
}

func (d *document) operation(path, method string, item, n *node) *operation {
	op := &operation{
		ID:          n.get("operationId").text(),
		Method:      strings.ToUpper(method),
		Path:        path,
		Summary:     n.get("summary").text(),
		Description: markdown(n.get("description").text()),
	}
	if tags := n.get("tags").texts(); len(tags) > 0 {
		op.Tag = tags[0]
	}

	security := n.get("security")
	if security == nil {
		security = d.root.get("security")
	}
	op.Open = len(security.list()) == 0
	for _, choice := range security.list() {
		op.Open = op.Open || len(choice.all()) == 0
		for _, scheme := range choice.all() {
			op.Scopes = append(op.Scopes, scheme.value.texts()...)
		}
	}

	for _, p := range slices.Concat(item.get("parameters").list(), n.get("parameters").list()) {
		op.Parameters = append(op.Parameters, d.parameter(p))
	}
	body, _ := d.follow(n.get("requestBody"))
	if media := body.get("content", "application/json"); media != nil {
		op.Body = d.field("", media.get("schema"), maxFields)
		op.BodyRequired = body.get("required").text() == "true"
		op.Examples = examplesOf(media)
	}
	for _, a := range n.get("responses").all() {
		op.Answers = append(op.Answers, d.answer(a.name, a.value))
	}
	return op
}

// parameter reads a parameter or a header.
func (d *document) parameter(n *node) *field {
	p, _ := d.follow(n)
	f := d.field(p.get("name").text(), p.get("schema"), maxFields)
	f.In, f.Required = p.get("in").text(), p.get("required").text() == "true"
	if text := p.get("description").text(); text != "" {
		f.Description = markdown(text)
	}

	if e := p.get("example"); e != nil {
		f.Example = strings.Join(e.texts(), ",")
	} else if all := p.get("examples").all(); len(all) > 0 {
		f.Example = all[0].value.get("value").text()
	}
	return f
}

func (d *document) answer(status string, n *node) *answer {
	n, _ = d.follow(n)
	a := &answer{Status: status, Description: markdown(n.get("description").text())}
	for _, h := range n.get("headers").all() {
		f := d.parameter(h.value)
		f.Name = h.name
		a.Headers = append(a.Headers, f)
	}

	for _, media := range n.get("content").all() {
		a.Media = append(a.Media, media.name)
		if media.name == "application/json" && media.value.get("schema") != nil {
			a.Body = d.field("", media.value.get("schema"), maxFields)
			a.Examples = examplesOf(media.value)
		}
	}
	if a.Body != nil && a.Kind() == "bad" {
		for _, f := range a.Body.Fields {
			if f.Name == "classifier" {
				a.Classifiers = f.Values
			}
		}
	}
	return a
}

func examplesOf(media *node) (all []example) {
	for _, e := range media.get("examples").all() {
		text, line := e.value.get("value").pretty()
		all = append(all, example{e.value.get("summary").text(), text, line})
	}
	return all
}

// common takes from operations the parameters that all have, and from their answers the
// headers that all have. It returns the former, and each header
// of answers once with each of its values.
func common(operations []*operation) (parameters, headers []*field) {
	uses, answers := map[string]int{}, 0
	note := func(all *[]*field, f *field) {
		if !slices.ContainsFunc(*all, func(have *field) bool { return have.Name == f.Name && slices.Equal(have.Values, f.Values) }) {
			*all = append(*all, f)
		}
	}
	for _, op := range operations {
		for _, p := range op.Parameters {
			uses[p.In+" "+p.Name]++
		}
		answers += len(op.Answers)
		for _, a := range op.Answers {
			for _, h := range a.Headers {
				uses[h.Name]++
				note(&headers, h)
			}
		}
	}

	for _, op := range operations {
		op.Parameters = slices.DeleteFunc(op.Parameters, func(f *field) bool {
			all := uses[f.In+" "+f.Name] == len(operations)
			if all {
				note(&parameters, f)
			}
			return all
		})
		for _, a := range op.Answers {
			a.Headers = slices.DeleteFunc(a.Headers, func(f *field) bool { return uses[f.Name] == answers })
		}
	}
	return parameters, headers
}

// finish says how an operation is called, and whether it can be tried on the page: files and
// what only browsers ask cannot.
func (op *operation) finish(o *Options) {
	for _, s := range op.Scopes {
		if !slices.Contains(o.Scopes, s) {
			op.Lacks = append(op.Lacks, s)
		}
	}
	file := op.Open && !strings.Contains(op.Path, "{")
	op.Try = !file && op.Method != "OPTIONS" && len(op.Lacks) == 0

	var b strings.Builder
	b.WriteString("curl -s ")
	if op.Method != "GET" && (op.Method != "POST" || op.Body == nil) {
		b.WriteString("-X " + op.Method + " ")
	}
	b.WriteString(quoted(o.BaseURL + op.Path))
	header := func(text string) { b.WriteString(" \\\n  -H " + text) }
	if !op.Open {
		header(`"x-api-key: $KEY"`)
	}
	for _, p := range op.Parameters {
		if p.In == "header" && p.Required {
			header(quoted(p.Name + ": " + p.Example))
		}
	}
	if op.Body != nil {
		line := "{}"
		if len(op.Examples) > 0 {
			line = op.Examples[0].Line
		}
		header("'content-type: application/json'")
		b.WriteString(" \\\n  -d " + quoted(line))
	}
	op.Curl = b.String()
}

// quoted returns text as one word of a shell.
func quoted(text string) string {
	if strings.ContainsAny(text, " {}?&'\"\n") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// Rows returns the height of the field for a body, in lines.
func (o *operation) Rows() string {
	return strconv.Itoa(max(3, 1+strings.Count(o.Given(), "\n")))
}
