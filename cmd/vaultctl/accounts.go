package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cardvault/cardvault"
	"github.com/cardvault/cardvault/internal/operator"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// parseID reads an id as it is printed. uuid.Parse takes other forms too.
func parseID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != len(uuid.Nil.String()) || id == uuid.Nil {
		return uuid.Nil, errors.New("must be an id, such as f3a91c5e-7d2b-4c86-9a40-1b6e8d2f7c35")
	}
	return id, nil
}

// within returns a command on an account, with a flag for that.
func (c *cli) within(cmd *cobra.Command, do func(context.Context, operator.Vault, uuid.UUID, []string) error) *cobra.Command {
	var account string
	cmd.Flags().StringVar(&account, "account", "", "`id` of the account (default: the first account)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := accountOf(account)
		if err != nil {
			return err
		}
		return c.either(func(ctx context.Context, v operator.Vault) error { return do(ctx, v, id, args) })(cmd, args)
	}
	return cmd
}

// withinOn returns a command on an object of an account, whose id is its argument.
func (c *cli) withinOn(cmd *cobra.Command, do func(ctx context.Context, v operator.Vault, account, id uuid.UUID) error) *cobra.Command {
	return c.within(cmd, func(ctx context.Context, v operator.Vault, account uuid.UUID, args []string) error {
		id, err := parseID(args[0])
		if err != nil {
			return misuseError{fmt.Errorf("ID %w", err)}
		}
		return do(ctx, v, account, id)
	})
}

// accountOf returns the account of a flag, zero for the first account.
func accountOf(flag string) (uuid.UUID, error) {
	if flag == "" {
		return uuid.Nil, nil
	}
	id, err := parseID(flag)
	if err != nil {
		return uuid.Nil, misuseError{fmt.Errorf("--account %w", err)}
	}
	return id, nil
}

// showList shows the items of a list that could be read, with the error of the others.
func showList[T any](c *cli, all []T, err error, head []string, row func(T) []string, as func(T) object) error {
	rows, data := [][]string{head}, []object{}
	for _, item := range all {
		rows, data = append(rows, row(item)), append(data, as(item))
	}
	return errors.Join(c.show(object{"data": data}, table(rows...)), err)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func accountObject(a *cardvault.Account) object {
	return object{"id": a.ID, "name": a.Name, "created_at": a.CreatedAt, "import_approved": a.ImportApproved, "network_tokens_active": a.NetworkTokensActive, "state": a.State}
}

func (c *cli) accounts() *cobra.Command {
	create := &cobra.Command{
		Use: "create NAME", Short: "Make an account with a primary merchant", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.either(func(ctx context.Context, v operator.Vault) error {
				a, err := v.CreateAccount(ctx, args[0], nil)
				if err != nil {
					return err
				}

				return c.show(accountObject(a), a.ID.String()+"\n")
			})(cmd, args)
		},
	}

	all := &cobra.Command{
		Use: "list", Short: "List all accounts, oldest first", Args: cobra.NoArgs,
		RunE: c.either(func(ctx context.Context, v operator.Vault) error {
			all, err := v.Accounts(ctx)
			return showList(c, all, err, []string{"ID", "NAME", "MADE", "IMPORT", "NETWORK TOKENS", "STATE"},
				func(a *cardvault.Account) []string {
					return []string{a.ID.String(), a.Name, date(a.CreatedAt), yes(a.ImportApproved), yes(a.NetworkTokensActive), a.State.String()}
				}, accountObject)
		}),
	}
	return group("accounts", "Make and list accounts", create, all)
}

// ends returns a command that gives the account of its argument another state.
func (c *cli) ends(cmd *cobra.Command, do func(operator.Vault, context.Context, uuid.UUID) (*cardvault.Account, error), text string) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := parseID(args[0])
		if err != nil {
			return misuseError{fmt.Errorf("ACCOUNT %w", err)}
		}
		return c.either(func(ctx context.Context, v operator.Vault) error {
			a, err := do(v, ctx, id)
			if err != nil {
				return err
			}
			return c.show(accountObject(a), text)
		})(cmd, args)
	}
	return cmd
}

func (c *cli) freeze() *cobra.Command {
	return c.ends(&cobra.Command{
		Use: "freeze ACCOUNT", Short: "Refuse all calls of an account, until unfreeze",
		Long: "Freeze refuses all calls of an account, in every process, also those that have begun. Nothing of the account is lost, and unfreeze ends it.",
	}, operator.Vault.FreezeAccount, "The account is frozen.\n")
}

func (c *cli) unfreeze() *cobra.Command {
	return c.ends(&cobra.Command{Use: "unfreeze ACCOUNT", Short: "End the freeze of an account"}, operator.Vault.ThawAccount, "The account is open.\n")
}

func (c *cli) closeAccount() *cobra.Command {
	var sure bool
	cmd := c.ends(&cobra.Command{
		Use: "close ACCOUNT", Short: "End an account for ever, and erase all that it has",
		Long: "Close refuses all calls of an account for ever. The server erases everything that the account has, and deletes its network tokens at their networks: accounts list has closed then. It cannot be undone, and --erase says that you know it. Close a closed account again to erase what a restored store has put back.",
	}, operator.Vault.CloseAccount, "The account is closing: the server erases all that it has.\n")
	cmd.Flags().BoolVar(&sure, "erase", false, "erase all cards of the account")
	do := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !sure {
			return misuseError{errors.New("close erases all cards of the account: repeat it with --erase")}
		}
		return do(cmd, args)
	}
	return cmd
}

func (c *cli) approve() *cobra.Command {
	var imports, tokens bool
	cmd := &cobra.Command{
		Use:   "approve",
		Short: "Grant or withdraw the approvals of an account",
		Long:  "Approve grants an account the import of card numbers over REST, or network tokens. --import=false withdraws.",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&imports, "import", false, "POST /cde-import")
	cmd.Flags().BoolVar(&tokens, "network-tokens", false, "network tokens, also for the cards that the account has")
	return c.within(cmd, func(ctx context.Context, v operator.Vault, account uuid.UUID, _ []string) error {
		var u cardvault.AccountUpdate
		if cmd.Flags().Changed("import") {
			u.ImportApproved = &imports
		}
		if cmd.Flags().Changed("network-tokens") {
			u.NetworkTokensActive = &tokens
		}
		if u.ImportApproved == nil && u.NetworkTokensActive == nil {
			return misuseError{errors.New("name an approval: --import or --network-tokens")}
		}

		a, err := v.UpdateAccount(ctx, account, u)
		if err != nil {
			return err
		}
		return c.show(accountObject(a), fmt.Sprintf("import: %s, network tokens: %s\n", yes(a.ImportApproved), yes(a.NetworkTokensActive)))
	})
}

func merchantObject(m *cardvault.Merchant) object {
	return object{"id": m.ID, "name": m.Name, "created_at": m.CreatedAt, "primary": m.Primary, "payment_secrets": len(m.Secrets)}
}

func (c *cli) merchants() *cobra.Command {
	create := &cobra.Command{Use: "create NAME", Short: "Make a merchant", Args: cobra.ExactArgs(1)}
	c.within(create, func(ctx context.Context, v operator.Vault, account uuid.UUID, args []string) error {
		m, err := v.CreateMerchant(ctx, account, args[0])
		if err != nil {
			return err
		}
		return c.show(merchantObject(m), m.ID.String()+"\n")
	})

	all := &cobra.Command{Use: "list", Short: "List the merchants of an account, oldest first", Args: cobra.NoArgs}
	c.within(all, func(ctx context.Context, v operator.Vault, account uuid.UUID, _ []string) error {
		merchants, err := v.Merchants(ctx, account)
		return showList(c, merchants, err, []string{"ID", "NAME", "MADE", "PRIMARY", "SECRETS"},
			func(m *cardvault.Merchant) []string {
				return []string{m.ID.String(), m.Name, date(m.CreatedAt), yes(m.Primary), fmt.Sprint(len(m.Secrets))}
			}, merchantObject)
	})

	rotate := &cobra.Command{
		Use: "rotate-secret ID", Short: "Make a payment secret for a merchant, and print it once", Args: cobra.ExactArgs(1),
		Long: "Rotate-secret makes a payment secret for a merchant and prints it, once. The first one is used at once, a later one after a day.",
	}
	c.withinOn(rotate, func(ctx context.Context, v operator.Vault, account, id uuid.UUID) error {
		s, err := v.RotatePaymentSecret(ctx, account, id)
		if err != nil {
			return err
		}
		c.note("Payment secret %s, used from %s on. It is shown only here.", s.KeyID, date(s.ActivateAt))
		if err := c.show(object{"merchant_id": id, "key_id": s.KeyID, "activate_at": s.ActivateAt, "secret": s.Secret.Text()}, s.Secret.Text()+"\n"); err != nil { // it is lost
			return errors.Join(err, v.RevokePaymentSecret(context.WithoutCancel(ctx), account, id, s.KeyID))
		}
		return nil
	})

	revoke := &cobra.Command{
		Use: "revoke-previous-secret ID", Short: "Revoke the previous payment secret of a merchant", Args: cobra.ExactArgs(1),
		Long: "Revoke-previous-secret ends the payment secret of a merchant before the newest one, and the newest is used from then on.\n\n" +
			"If a secret has leaked: rotate-secret, give the new one to the merchant, and revoke the previous one. A merchant with one secret keeps it.",
	}
	c.withinOn(revoke, func(ctx context.Context, v operator.Vault, account, id uuid.UUID) error {
		if err := v.RevokePreviousPaymentSecret(ctx, account, id); err != nil {
			return err
		}
		return c.show(object{"merchant_id": id, "previous_revoked": true}, "No previous secret is left.\n")
	})
	return group("merchants", "Make and list merchants, and their payment secrets", create, all, rotate, revoke)
}

func keyObject(k *cardvault.APIKey) object {
	return object{
		"id": k.ID, "label": k.Label, "created_at": k.CreatedAt, "expires_at": instant(k.ExpiresAt), "last_used_at": instant(k.LastUsedAt),
		"scopes": k.Scopes, "address_ranges": k.AddressRanges,
	}
}

func (c *cli) apiKeys() *cobra.Command {
	all := &cobra.Command{Use: "list", Short: "List the API keys of an account, oldest first", Args: cobra.NoArgs}
	c.within(all, func(ctx context.Context, v operator.Vault, account uuid.UUID, _ []string) error {
		keys, err := v.APIKeys(ctx, account)
		return showList(c, keys, err, []string{"ID", "LABEL", "MADE", "EXPIRES", "USED", "FROM", "SCOPES"},
			func(k *cardvault.APIKey) []string {
				from := "-"
				if len(k.AddressRanges) > 0 {
					from = strings.Trim(fmt.Sprint(k.AddressRanges), "[]")
				}
				return []string{k.ID.String(), k.Label, date(k.CreatedAt), date(k.ExpiresAt), date(k.LastUsedAt), from, joined(k.Scopes)}
			}, keyObject)
	})

	revoke := &cobra.Command{Use: "revoke ID", Short: "Revoke an API key, and the keys that it made", Args: cobra.ExactArgs(1)}
	c.withinOn(revoke, func(ctx context.Context, v operator.Vault, account, id uuid.UUID) error {
		if err := v.DeleteAPIKey(ctx, account, id); err != nil {
			return err
		}
		return c.show(object{"id": id, "revoked": true}, "The key is revoked.\n")
	})
	return group("api-keys", "Make, list and revoke API keys", c.apiKeyCreate(), all, revoke)
}

func joined(scopes []cardvault.Scope) string {
	var texts []string
	for _, s := range scopes {
		texts = append(texts, string(s))
	}
	return strings.Join(texts, " ")
}

func (c *cli) apiKeyCreate() *cobra.Command {
	var scopes []string
	var ttl time.Duration
	var ranges []string
	cmd := &cobra.Command{
		Use: "create LABEL", Short: "Make an API key, and print it once", Args: cobra.ExactArgs(1),
		Long: "Create makes an API key and prints it to standard output, once.\n\nScopes: " + joined(cardvault.AllScopes()) + ".",
	}
	cmd.Flags().StringSliceVar(&scopes, "scope", nil, "`scope` of the key; all is every scope")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the key lives, 2160h at most; without an end only in a sandbox")
	cmd.Flags().StringSliceVar(&ranges, "from", nil, "`network` from which the key may be used, such as 192.0.2.0/24 (default: all)")
	return c.within(cmd, func(ctx context.Context, v operator.Vault, account uuid.UUID, args []string) error {
		var may []cardvault.Scope
		for _, s := range scopes {
			may = append(may, cardvault.Scope(s))
		}
		if slices.Contains(scopes, "all") {
			may = cardvault.AllScopes()
		}
		o := cardvault.APIKeyOptions{TTL: ttl}
		for _, text := range ranges {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return misuseError{errors.New("--from must be a network such as 192.0.2.0/24")}
			}
			o.AddressRanges = append(o.AddressRanges, p)
		}
		k, err := v.CreateAPIKey(ctx, account, args[0], may, &o)
		if err != nil {
			return err
		}

		c.note("API key %s. It is shown only here.", k.ID)
		shown := keyObject(k)
		shown["api_key"] = k.Text.Text()
		if err := c.show(shown, k.Text.Text()+"\n"); err != nil { // its text is lost
			return errors.Join(err, v.DeleteAPIKey(context.WithoutCancel(ctx), account, k.ID))
		}
		return nil
	})
}
