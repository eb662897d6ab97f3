package card

import "context"

// A Used is the card of a token, given to a function for the time it runs. It is for one
// goroutine. When the function has returned, its values are wiped and it is zero.
type Used struct {
	PAN          PAN
	Expiry       Expiry
	Name         Name         // zero if the token has none
	SecurityCode SecurityCode // zero unless the vault has it
	Masked       string       // first six and last four digits of the number, the rest "*"

	// Consume ends the security code of the token, as cardvault.Vault.Consume does: the
	// payment was authorized. SecurityCode stays until the function returns.
	Consume func(context.Context) error
}

// Wipe overwrites number, name and code with zeros, in every copy.
func (u *Used) Wipe() {
	u.PAN.Wipe()
	u.Name.Wipe()
	u.SecurityCode.Wipe()
}
