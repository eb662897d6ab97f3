// Contract makes httpapi/openapi.json of httpapi/openapi.yaml: from the root of the
// repository, go run -C test ./contract. What it makes is committed, so that the handler
// serves JSON without a YAML parser. The tests hold the contract and the handler equal.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"go.yaml.in/yaml/v4"
)

const dir = "../httpapi/"

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	text, err := os.ReadFile(dir + "openapi.yaml")
	if err != nil {
		return err
	}
	made, err := convert(text)
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"openapi.json", made, 0o644)
}

// convert returns a YAML document as JSON, with the members of objects in their order and
// aliases written out.
func convert(text []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}

	var plain, b bytes.Buffer
	if err := write(&plain, document.Content[0]); err != nil {
		return nil, err
	}
	if err := json.Indent(&b, plain.Bytes(), "", " "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

func write(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.AliasNode:
		return write(b, n.Alias)

	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i < len(n.Content); i += 2 {
			name := n.Content[i]
			if i > 0 {
				b.WriteByte(',')
			}
			if name.Kind != yaml.ScalarNode || name.Tag == "!!merge" {
				return fmt.Errorf("line %d: not every reader of YAML knows such a name", name.Line)
			}
			if err := writeValue(b, name.Value); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := write(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')

	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := write(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')

	default:
		var value any
		if err := n.Decode(&value); err != nil {
			return err
		}
		return writeValue(b, value)
	}
	return nil
}

func writeValue(b *bytes.Buffer, value any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	return e.Encode(value)
}
