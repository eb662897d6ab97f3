package forward

import (
	"bytes"
	"context"
	"errors"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/forward/internal/redact"
	"github.com/cardvault/cardvault/forward/internal/template"
	"github.com/cardvault/cardvault/internal/hiding"
	"github.com/cardvault/cardvault/invalid"
)

// hidden is embedded under this name, so that other packages cannot name the field.
type hidden = hiding.Bytes

// A Credential is a secret of the operator that goes into a header: 8 to 8192 printable
// ASCII characters. However it is printed, logged or encoded, nothing of it shows. The zero
// value is empty.
type Credential struct{ hidden }

// NewCredential returns a Credential of a copy of text.
func NewCredential(text []byte) Credential { return Credential{hiding.New(text)} }

const maxCredential = 8 << 10

var errCredential = errors.New("forward: a credential must be 8 to 8192 printable ASCII characters")

// isCredential reports whether a text can be a credential.
func isCredential(text []byte) bool {
	return len(text) >= redact.MinSecret && len(text) <= maxCredential &&
		!bytes.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// SetCredential stores a credential for the destination of the name to, in place of a former
// one. It is sealed in the vault for forwards of the forwarder's account, and is never shown.
// A forward that begins later has it. [Destination.Credential] comes first. name has letters,
// digits, "_" and "-".
//
// Errors: ErrDestination for a destination that the forwarder does not have;
// cardvault.FieldErrors; cardvault.ErrNotFound for an account that does not exist.
func (f *Forwarder) SetCredential(ctx context.Context, to, name string, c Credential) error {
	known := false
	for _, d := range f.destinations {
		known = known || d.Name == to
	}
	switch {
	case !known:
		return ErrDestination
	case !template.IsCredentialName(name):
		return &cardvault.FieldError{Field: "Name", Code: invalid.Format, Message: "must contain letters, digits, _ and - only"}
	case !isCredential(hiding.Of(c)):
		return &cardvault.FieldError{Field: "Credential", Code: invalid.Format, Message: "must be 8 to 8192 printable ASCII characters"}
	}
	return f.vault.ForwardCredentials().Set(ctx, to, name, hiding.Of(c))
}

// DeleteCredential deletes a credential that SetCredential has stored, also of a destination
// that the forwarder does not have any more. Without one it is cardvault.ErrNotFound.
func (f *Forwarder) DeleteCredential(ctx context.Context, to, name string) error {
	return f.vault.ForwardCredentials().Delete(ctx, to, name)
}

// addCredentials adds the credentials that the headers name.
func (c *call) addCredentials(ctx context.Context, v *template.Values) error {
	v.Credentials = map[string][]byte{}
	for _, name := range c.credentials {
		text, err := c.credential(ctx, name)
		switch {
		case errors.Is(err, cardvault.ErrNotFound):
			return &cardvault.FieldError{Field: "Header", Code: invalid.UnknownPlaceholder, Message: "has a credential that the destination does not have"}
		case err != nil:
			return err
		}
		v.Credentials[name] = text
		if !isCredential(text) {
			return errCredential
		}
	}
	return nil
}

// credential returns a credential of the destination, for the caller to erase: from the
// operator's function, or else the stored one. Without any it is cardvault.ErrNotFound.
func (c *call) credential(ctx context.Context, name string) ([]byte, error) {
	if c.to.Credential != nil {
		var given Credential
		err := guarded("Destination.Credential", func() (err error) {
			given, err = c.to.Credential(ctx, c.account, name)
			return err
		})
		if err != nil || !given.IsZero() {
			return bytes.Clone(hiding.Of(given)), err
		}
	}
	return c.vault.ForwardCredentials().Get(ctx, c.to.Name, name)
}
