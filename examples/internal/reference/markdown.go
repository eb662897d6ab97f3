package reference

import (
	"html/template"
	"regexp"
	"strings"
)

// markdown returns the Markdown of a description as HTML: headings, paragraphs, lists,
// tables, code, bold text and links to this page or over HTTP. All else is text.
func markdown(text string) template.HTML {
	var b strings.Builder
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for len(lines) > 0 {
		lines = block(&b, lines)
	}
	return template.HTML(b.String())
}

var (
	heading = regexp.MustCompile(`^(#{1,3}) (.+)$`)
	ordered = regexp.MustCompile(`^\d+\. `)
)

// block writes the first block of lines and returns the others.
func block(b *strings.Builder, lines []string) []string {
	first := lines[0]
	switch {
	case strings.TrimSpace(first) == "":
		return lines[1:]
	case strings.HasPrefix(first, "```"):
		return fence(b, lines[1:])
	case strings.HasPrefix(first, "|"):
		return table(b, lines)
	case strings.HasPrefix(first, "- "):
		return list(b, lines, "ul", func(line string) (string, bool) { return strings.CutPrefix(line, "- ") })
	case ordered.MatchString(first):
		return list(b, lines, "ol", func(line string) (string, bool) {
			return ordered.ReplaceAllString(line, ""), ordered.MatchString(line)
		})
	}

	if m := heading.FindStringSubmatch(first); m != nil {
		tag := "h" + string('1'+rune(len(m[1]))) // the page has the h1
		b.WriteString("<" + tag + ` id="` + template.HTMLEscapeString(sectionID(m[2])) + `">` + inline(m[2]) + "</" + tag + ">\n")
		return lines[1:]
	}

	n := 1
	for n < len(lines) && !startsBlock(lines[n]) {
		n++
	}
	b.WriteString("<p>" + inline(strings.Join(lines[:n], " ")) + "</p>\n")
	return lines[n:]
}

// startsBlock reports whether a line does not go on with a paragraph.
func startsBlock(line string) bool {
	return strings.TrimSpace(line) == "" || strings.HasPrefix(line, "```") || strings.HasPrefix(line, "|") ||
		strings.HasPrefix(line, "- ") || ordered.MatchString(line) || heading.MatchString(line)
}

// sectionID is the id of a heading, as links in descriptions name it.
func sectionID(title string) string { return "section/" + strings.ReplaceAll(title, " ", "-") }

// fence writes code up to the closing fence.
func fence(b *strings.Builder, lines []string) []string {
	n := 0
	for n < len(lines) && !strings.HasPrefix(lines[n], "```") {
		n++
	}
	b.WriteString("<pre><code>" + template.HTMLEscapeString(strings.Join(lines[:n], "\n")) + "</code></pre>\n")
	return lines[min(n+1, len(lines)):]
}

// list writes items as long as item finds one.
func list(b *strings.Builder, lines []string, tag string, item func(line string) (string, bool)) []string {
	b.WriteString("<" + tag + ">\n")
	for len(lines) > 0 {
		text, ok := item(lines[0])
		if !ok {
			break
		}
		lines = lines[1:]
		for len(lines) > 0 && !startsBlock(lines[0]) {
			text += " " + strings.TrimSpace(lines[0])
			lines = lines[1:]
		}
		b.WriteString("<li>" + inline(text) + "</li>\n")
	}
	b.WriteString("</" + tag + ">\n")
	return lines
}

// table writes the rows of a table, the first as its head. It scrolls by itself where it is
// too wide.
func table(b *strings.Builder, lines []string) []string {
	b.WriteString(`<div class="scroll" role="region" aria-label="Table" tabindex="0"><table>` + "\n")
	for n := 0; len(lines) > 0 && strings.HasPrefix(lines[0], "|"); n++ {
		cells := strings.Split(strings.Trim(strings.TrimSpace(lines[0]), "|"), "|")
		lines = lines[1:]
		if n == 1 {
			continue // the line between head and body
		}
		tag := "td"
		if n == 0 {
			tag = "th"
		}
		b.WriteString("<tr>")
		for _, cell := range cells {
			b.WriteString("<" + tag + ">" + inline(strings.TrimSpace(cell)) + "</" + tag + ">")
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</table></div>\n")
	return lines
}

var (
	span = regexp.MustCompile("`([^`]+)`" + `|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)\s]+)\)`)
	href = regexp.MustCompile(`^(#|https?://)`)
)

// inline returns the text of a paragraph as HTML.
func inline(text string) string {
	var b strings.Builder
	rest := 0
	for _, m := range span.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(template.HTMLEscapeString(text[rest:m[0]]))
		rest = m[1]
		part := func(i int) string { return template.HTMLEscapeString(text[m[2*i]:m[2*i+1]]) }
		switch {
		case m[2] >= 0:
			b.WriteString("<code>" + part(1) + "</code>")
		case m[4] >= 0:
			b.WriteString("<strong>" + part(2) + "</strong>")
		case href.MatchString(text[m[8]:m[9]]):
			b.WriteString(`<a href="` + part(4) + `">` + part(3) + "</a>")
		default:
			b.WriteString(part(3))
		}
	}

	b.WriteString(template.HTMLEscapeString(text[rest:]))
	return b.String()
}
