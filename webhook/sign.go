package webhook

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cardvault/cardvault/internal/signature"
	"github.com/cardvault/cardvault/receive"
)

// sign returns the header webhook-signature.
func sign(secrets []receive.WebhookSecret, id, timestamp string, body []byte) (string, error) {
	if len(secrets) == 0 {
		return "", errors.New("webhook: no secret")
	}

	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		var err error
		s.Expose(func(text []byte) { signatures[i], err = signature.Sign(text, id, timestamp, body) })
		if err != nil {
			return "", fmt.Errorf("webhook: %w", err)
		}
	}
	return strings.Join(signatures, " "), nil
}
