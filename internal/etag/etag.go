// Package etag makes entity tags of files, and compares them with those that a client has.
package etag

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Of returns the strong entity tag of a body: the same for the same bytes alone.
func Of(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}

// Match reports whether values of the header If-None-Match name a tag. The strength of a
// tag does not count there.
func Match(values []string, tag string) bool {
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			item = strings.Trim(item, " \t")
			if item == "*" || strings.TrimPrefix(item, "W/") == tag {
				return true
			}
		}
	}
	return false
}
