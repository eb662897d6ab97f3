package snippets_test

// mystore is a package that readers write.
const mystore = `package mystore

import "github.com/cardvault/cardvault/store"

type Store struct{ store.Store }

func (s *Store) Path() string { return "" }

func Open(path string) (*Store, error) { return &Store{}, nil }
`

// inDocuments holds the settings of documents.
var inDocuments = map[string]setting{
	"README.md: In a Go program": {
		after: `if token.MaskedAccountNumber != "424242******4242" { t.Errorf("%v", token) }`,
	},
	"docs/account-updater.md: Keep cards up to date": {declarations: `var myUpdater updater.Provider`, last: "_ = o"},
	"docs/account-updater.md: Write an adapter":      {compiled: "simnet runs the same suite"},
	"docs/audit.md: Audit log":                       {compiled: "audit_test.go opens such vaults", declarations: `var keys *cardvault.Keyring; var sink audit.Sink`, last: "_, _ = v, err"},
	"docs/audit.md: Read and export":                 {compiled: "audit_test.go makes the same calls", declarations: `var file io.Reader; var keys []ed25519.PublicKey; var checkpoints []*audit.Checkpoint`, last: "_, _ = report, err"},
	"docs/custody.md: OpenBao and HashiCorp Vault":   {compiled: "it lacks a server", module: "kms"},
	"docs/custody.md: Azure and others":              {compiled: "it lacks Azure", module: "kms/gocloud"},
	"docs/custody.md: HSM":                           {compiled: "it lacks an HSM", module: "kms/pkcs11"},
	"docs/custody.md: Ceremony":                      {compiled: "examples/ceremony makes the same calls", module: "kms", declarations: `var enter func(context.Context, shares.Prompt) ([]byte, error)`},
	"docs/embed.md: Store and read a card":           {output: `424242\*{6}4242\nVISA 2030`},
	"docs/forward.md: Pay in ten minutes":            {output: `200 \{"number":"424242\*{6}4242","month":"12","year":"2030","amount":1999\}`},
	"docs/forward.md: With the provider's library": {
		compiled:     "TestStripe of test/sdks makes the same calls",
		module:       "test/sdks",
		declarations: vault + `var f *forward.Forwarder; var key string`,
	},
	"docs/forward.md: Over REST":               {compiled: "its calls are those of docs/serve.md and of the tests of httpapi", declarations: vault + `var f *forward.Forwarder`},
	"docs/forward.md: Destinations":            {compiled: "it names a provider that is not there", declarations: vault + `var shop uuid.UUID`},
	"docs/keys.md: Use a KMS":                  {compiled: "it lacks the client of a KMS"},
	"docs/keys.md: Rotate the fingerprint key": {compiled: "TestFingerprintsRotated makes the same call", declarations: vault},
	"docs/keys.md: Rotate the lookup key":      {compiled: "vaultsuite makes the same call", declarations: vault},
	"docs/keys.md: Rotate the audit key":       {compiled: "TestAuditRotated makes the same call", declarations: vault},
	"docs/middleware.md: Client addresses":     {compiled: "it lacks a vault"},
	"docs/move.md: In a program": {
		compiled:     "TestMove makes the same call",
		declarations: `var ctx context.Context; var former, next store.Store; var keys *cardvault.Keyring`,
		last:         "_, _ = report, err",
	},
	"docs/payments.md: Payments without the shopper": {
		compiled:     "examples/checkout makes such payments over REST",
		declarations: vault,
	},
	"docs/payments.md: Use a card in your program": {
		compiled:     "it has a list of risky cards that is not there",
		declarations: vault + `var lists interface{ Contains([]byte) bool }; var errRisky error`,
	},
	"docs/postgresql.md: Start":               {compiled: "it lacks servers; examples/cluster makes the same calls", module: "examples/cluster"},
	"docs/serve.md: Serve over TLS":           {compiled: "it listens on port 443, under a certificate that it lacks"},
	"docs/serve.md: Create the first API key": {output: `vk_live_\w+`},
	"docs/webhooks.md: Go":                    {compiled: "TestReceiversOfDocs of test/webhooks runs it"},
	"docs/write-a-network.md: Prove it":       {compiled: "simnet runs the same suite"},
	"docs/write-a-network.md: Several networks": {
		compiled:     "ExampleRoute makes the same call",
		declarations: `var opts cardvault.Options; var vts, mdes, former network.Provider`,
	},
	"docs/write-a-store.md: Prove it": {compiled: "store/memstore runs the same suites"},

	// The reader writes the tested code of a kit. So these are only compiled, and do
	// nothing when run.
	"CONTRIBUTING.md: Adding a backend": {declarations: `
		var open func(testing.TB) store.Store
		var reopen, second, crash func(testing.TB, store.Store) (store.Store, error)
		var place func(store.Store) string
		var fault func(testing.TB, store.Store, storetest.Fault) func()
		var openAt func(string) (store.Store, error)`},
	"CONTRIBUTING.md: Adding a cache of security codes": {declarations: `
		var open func(testing.TB) store.CodeCache
		var restart, second func(testing.TB, store.CodeCache) (store.CodeCache, error)
		var cutOff func(testing.TB, store.CodeCache) func()`},
	"CONTRIBUTING.md: Adding a network": {declarations: `
		var open func(testing.TB) network.Provider
		var visa cardvault.Card`},
}

const (
	vault = `var v *cardvault.Vault; var keys *cardvault.Keyring; var token *cardvault.Token;`
	test  = `const aid, mid, portal = "", "", ""; var hash ppan.Hash; var expiry card.Expiry;`
)

// inComments holds the settings of comments.
var inComments = map[string]setting{
	"card/card.go: 1":                       {first: "var _ interface {\n", last: "} = card.PAN{}"},
	"forward/forward.go: 1":                 {declarations: vault},
	"httpapi/handler.go: 1":                 {declarations: vault},
	"audittest/audittest.go: 1":             {declarations: `var bucket any; var NewSink func(any) audit.Sink; var Kept func(context.Context, any) ([]*audit.Checkpoint, error)`},
	"idvtest/idvtest.go: 1":                 {declarations: test + `var my3ds struct{ New func(any) idv.Provider }; var testSystem any`},
	"internal/realtest/postgres.go: 1":      {module: "."},
	"networks/networks.go: 1":               {declarations: vault + `var visa, mastercard, aggregator network.Provider`, compiled: "ExampleRoute makes the same call"},
	"internal/tlv/fields.go: 1":             {declarations: `type point struct{ x, y uint32 }`},
	"keytest/keytest.go: 1":                 {declarations: `var mykms struct{ New func(any, string) cardvault.KeyWrapper }; var client any`},
	"network/network.go: 1":                 {first: "type _ interface {\n", last: "}"},
	"networktest/networktest.go: 1":         {declarations: `var mynet struct{ New func(any) network.Provider }; var sandbox any`},
	"payone/payone.go: 1":                   {declarations: vault + test},
	"ppantest/ppantest.go: 1":               {declarations: test + `var mypsp struct{ New func(any) ppan.Provider }; var testSystem any`},
	"simnet/simnet.go: 1":                   {declarations: vault},
	"sinktest/sinktest.go: 1":               {declarations: `var db *sql.DB; var billing struct{ NewSink func(*sql.DB) cardvault.EventSink; Handled func(context.Context, *sql.DB, uuid.UUID) (int, error) }`},
	"store/pgstore/pgstore.go: 1":           {module: "examples/cluster"},
	"store/storetest/canary.go: 1":          {declarations: `var pan, code, name []byte`},
	"store/storetest/durability.go: 1":      {},
	"store/storetest/powercut.go: 1":        {first: "_ = "},
	"store/storetest/storetest.go: 1":       {declarations: `var open func(testing.TB, string) store.Store`},
	"store/valkeycodes/valkeycodes.go: 1":   {module: "examples/cluster", declarations: vault, before: `var store store.Store`},
	"updatertest/updatertest.go: 1":         {declarations: test + `var myvau struct{ New func(any) updater.Provider }; var testSystem any`},
	"vault.go: 1":                           {},
	"vaulttest/network.go: 1":               {before: `var visa cardvault.Card`},
	"vaulttest/recorder.go: 1":              {},
	"vaulttest/vaultsuite/vaultsuite.go: 1": {declarations: `var harness storetest.Harness`},
	"vaulttest/vaulttest.go: 1":             {},
	"webhook/webhooktest/sender.go: 1":      {},
}

// otherwise names the blocks in comments that are not Go code, and their content.
var otherwise = map[string]string{
	"audit/audit.go: 1":                    "lines of an export",
	"internal/auditlog/log.go: 1":          "a picture",
	"internal/backup/format.go: 1":         "a format",
	"internal/backup/format.go: 2":         "likewise",
	"internal/backup/format.go: 3":         "likewise",
	"internal/backup/manifest.go: 1":       "likewise",
	"internal/reseal/reseal.go: 1":         "a picture",
	"internal/seal/keys.go: 1":             "a format",
	"examples/ceremony/main.go: 1":         "usage",
	"cmd/vaultctl/main.go: 1":              "usage",
	"examples/cluster/main.go: 2":          "usage",
	"examples/cluster/orders/orders.go: 1": "a table",
	"examples/migrate/main.go: 1":          "lines of a file",
	"forward/forward.go: 2":                "placeholders",
	"forward/forward.go: 3":                "placeholders",
	"httpapi/cardentry/cardentry.go: 1":    "HTML: TestSnippets of test/browser",
	"httpapi/cardentry/cardentry.go: 2":    "JavaScript: TestSnippets of test/browser",
	"httpapi/cardentry/cardentry.go: 3":    "CSS: TestSnippets of test/browser",
	"internal/credential/credential.go: 1": "an answer",
	"internal/keyfile/format.go: 1":        "a format",
	"internal/keytext/keytext.go: 1":       "a format",
	"internal/ledger/ledger.go: 1":         "a picture",
	"internal/outbox/outbox.go: 1":         "a picture",
	"internal/renewal/renewal.go: 1":       "a picture",
	"internal/seal/code.go: 1":             "a format",
	"internal/seal/code.go: 2":             "a format",
	"internal/seal/seal.go: 1":             "a picture",
	"internal/seal/seal.go: 2":             "a format",
	"internal/seal/seal.go: 3":             "a format",
	"internal/seal/sums.go: 1":             "a format",
	"internal/transcript/transcript.go: 1": "a format",
	"internal/wire/wire.go: 1":             "tags of fields",
	"payone/payone.go: 2":                  "a table",
	"payone/payone.go: 3":                  "shell: TestHashInShell",
	"receive/endpoint/endpoint.go: 1":      "a table",
	"receive/receive.go: 1":                "a request",
	"receive/receive.go: 2":                "an answer",
	"simnet/simnet.go: 2":                  "a table",
	"store/boltstore/row.go: 1":            "a format",
	"store/pgstore/migrate.go: 1":          "SQL: TestMigrationsByHand of store/pgstore",
}

// languages names the test for each block in another language, or the reason for having
// none.
var languages = map[string]string{
	"CONTRIBUTING.md: Contributing: sh":                                 "TestReferences of internal/doctest knows the targets of make",
	"README.md: Try it: sh":                                             "TestServer of examples/server",
	"README.md: Run the tests: sh":                                      "TestReferences of internal/doctest knows the targets of make",
	"docs/audit.md: In the sandbox: sh":                                 "TestKilled of examples/server exports and verifies such a log",
	"docs/operating.md: Increments: sh":                                 "increment.txtar of cmd/vaultctl has the commands",
	"docs/operating.md: Keep what was deleted deleted: sh":              "ledger.txtar of cmd/vaultctl has the commands",
	"docs/move.md: Settings: sh":                                        "printed.txtar of cmd/vaultctl runs the lines",
	"docs/move.md: Move: sh":                                            "printed.txtar of cmd/vaultctl runs the lines",
	"docs/move.md: If it ends early: sh":                                "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: In the sandbox: sh":                         "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: Copy key and ledger: sh":                    "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: Settings: sh":                               "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: Restore: sh":                                "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: Look: sh":                                   "printed.txtar of cmd/vaultctl runs the lines",
	"docs/restore-drill.md: Remove: sh":                                 "printed.txtar of cmd/vaultctl runs the lines",
	"docs/vaultctl.md: Every night, and a drill: sh":                    "backup.txtar of cmd/vaultctl has the commands",
	"docs/audit.md: Read and export: sh":                                "the transcript get_audit_records makes such requests",
	"docs/card-entry.md: Plain HTML: html":                              "TestSnippets of test/browser",
	"docs/card-entry.md: React: tsx":                                    "TestReactOfDocs of test/bundle, and TestSnippets of test/browser",
	"docs/card-entry.md: React: sh":                                     "it fetches from vault.example; package cardentry tests what it would get",
	"docs/card-entry.md: Vue: vue":                                      "TestSnippets of test/browser",
	"docs/card-entry.md: Styling: css":                                  "TestSnippets of test/browser",
	"docs/card-entry.md: Without the component: python":                 "TestSessionInPython of examples/server",
	"docs/postgresql.md: Partitions: sql":                               "TestCopyToPartitions of store/pgstore",
	"docs/replaced-cards.md: Have the shopper enter the new card: html": "TestReplace of test/browser enters a card in this element",
	"docs/embed.md: Add the module: sh":                                 "it changes the go.mod of the reader; modules here have the same replacement",
	"docs/getting-started.md: Start the sandbox: sh":                    "TestServer of examples/server",
	"docs/getting-started.md: Store a card: sh":                         "TestGettingStarted of examples/server",
	"docs/getting-started.md: Get a cryptogram: sh":                     "TestGettingStarted of examples/server",
	"docs/getting-started.md: See what can go wrong: sh":                "TestGettingStarted of examples/server",
	"docs/journeys.md: Start: sh":                                       "TestServer of examples/server",
	"docs/journeys.md: In a shell: sh":                                  "TestJourneys of examples/server",
	"docs/journeys.md: In Node.js: js":                                  "TestJourneys of examples/server",
	"docs/journeys.md: In Node.js: sh":                                  "TestJourneys of examples/server",
	"docs/journeys.md: In Python: python":                               "TestJourneys of examples/server",
	"docs/journeys.md: In Python: sh":                                   "TestJourneys of examples/server",
	"docs/postgresql.md: Start: sh":                                     "it changes the go.mod of the reader; modules here have the same replacement",
	"docs/vaultctl.md: vaultctl: sh":                                    "man.txtar of cmd/vaultctl has the lines",
	"docs/vaultctl.md: Beside a running server: sh":                     "server.txtar of cmd/vaultctl has the commands",
	"docs/vaultctl.md: Name the vault and its key: sh":                  "usage",
	"docs/vaultctl.md: Once a year, or when a key may have leaked: sh":  "way.txtar of cmd/vaultctl has the lines",
	"docs/webhooks.md: Send: sh":                                        "it calls vault.example; post_webhooks.txt in httpapi/testdata/transcripts has the call",
	"docs/webhooks.md: Node.js: js":                                     "TestReceiversOfDocs of test/webhooks",
	"docs/webhooks.md: Python: python":                                  "TestReceiversOfDocs of test/webhooks",
}
