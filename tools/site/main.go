// Site builds docs/ as static pages, without a network:
//
//	go run -C tools ./site -out ../site
//
// Links between pages lead to pages, all others to the repository.
package main

import (
	"bytes"
	_ "embed"
	"flag"
	"html/template"
	"log"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html
var layout string

var page = template.Must(template.New("page").Parse(layout))

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

func main() {
	docs := flag.String("docs", "../docs", "`directory` of the pages")
	out := flag.String("out", "../site", "`directory` of the site")
	repository := flag.String("repository", "https://github.com/cardvault/cardvault/blob/main", "`URL` of the repository's files")
	flag.Parse()
	if err := build(*docs, *out, *repository); err != nil {
		log.Fatal(err)
	}
}

// build writes a page for each file of docs into out. The index is README.md, which is also
// the menu of every page.
func build(docs, out, repository string) error {
	files, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	menu, _, err := render(filepath.Join(docs, "README.md"), repository)
	if err != nil {
		return err
	}

	for _, file := range files {
		body, title, err := render(file, repository)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		name := pageOf(filepath.Base(file))
		if err := page.Execute(&b, map[string]any{"Title": title, "Body": body, "Menu": menu, "Index": name == "index.html"}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return copyPictures(docs, out)
}

// copyPictures copies the pictures in the folders of docs, which pages show by the same
// names.
func copyPictures(docs, out string) error {
	files, err := filepath.Glob(filepath.Join(docs, "*", "*.svg"))
	if err != nil {
		return err
	}
	for _, file := range files {
		svg, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		folder := filepath.Join(out, filepath.Base(filepath.Dir(file)))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// render returns the HTML of a page and its first heading.
func render(file, repository string) (body template.HTML, title string, err error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	document := markdown.Parser().Parse(text.NewReader(source))
	err = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if entering {
				n.Destination = []byte(linkTo(string(n.Destination), repository))
			}
		case *ast.Heading:
			if entering && title == "" {
				title = string(n.Lines().Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return "", "", err
	}

	var b bytes.Buffer
	err = markdown.Renderer().Render(&b, source, document)
	return template.HTML(b.String()), title, err
}

// linkTo returns the destination of a link on the site.
func linkTo(to, repository string) string {
	file, anchor, anchored := strings.Cut(to, "#")
	switch {
	case strings.Contains(to, ":") || file == "":
		return to
	case strings.Contains(file, "/"):
		return repository + path.Join("/docs", file)
	case anchored:
		return pageOf(file) + "#" + anchor
	}
	return pageOf(file)
}

// pageOf returns the name of the page of a file.
func pageOf(file string) string {
	if file == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(file, ".md") + ".html"
}
