package floorplan_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/cardvault/cardvault"

// deps returns the direct imports of each package of the module, and all its dependencies.
// Tests are not counted.
func deps(t *testing.T) (direct, all map[string][]string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}|{{join .Imports \" \"}}|{{join .Deps \" \"}}", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}

	direct, all = map[string][]string{}, map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		name := strings.TrimPrefix(f[0], module)
		direct[name], all[name] = strings.Fields(f[1]), strings.Fields(f[2])
	}

	if len(direct) < 10 {
		t.Fatalf("found %d packages", len(direct))
	}
	return direct, all
}

// owners maps a library to the only packages of the module that may import it.
var owners = map[string][]string{
	"code.dny.dev/ssrf":                {"/internal/egress"},
	"go.etcd.io/bbolt":                 {"/store/boltstore"},
	"golang.org/x/crypto/":             {"/internal/keyfile"},
	"github.com/go-jose/":              {"/internal/credential", "/internal/payload"},
	"github.com/hashicorp/golang-lru/": {"/internal/codes"},
	"github.com/standard-webhooks/":    {}, // only tests import it
}

func TestOwners(t *testing.T) {
	direct, _ := deps(t)
	for pkg, imports := range direct {
		for _, path := range imports {
			for lib, only := range owners {
				if strings.HasPrefix(path, lib) && !contains(only, pkg) {
					t.Errorf("%s imports %s", module+pkg, path)
				}
			}
		}
	}
}

// neighbours maps a package to the only other packages of the module that it may import.
var neighbours = map[string][]string{
	"/audit":                {"/internal/enum", "/internal/wire"},
	"/card":                 {"/internal/enum", "/internal/hiding", "/internal/iin", "/internal/rule"},
	"/idv":                  {"/card", "/internal/enum"},
	"/network":              {"/card", "/idv", "/internal/enum", "/internal/layers"},
	"/ppan":                 {"/card", "/internal/enum", "/internal/hiding"},
	"/updater":              {"/card", "/internal/enum"},
	"/internal/addresses":   {"/internal/rule", "/invalid"},
	"/internal/adapter":     {"/card", "/idv", "/internal/layers", "/internal/ledger", "/internal/rule", "/network", "/ppan", "/updater"},
	"/internal/hiding":      {},
	"/internal/layers":      {},
	"/internal/paymentdata": {"/internal/ledger", "/internal/tlv", "/store"},
	"/internal/quota":       {"/internal/ledger", "/store"},
	"/internal/removal":     {"/internal/jobs", "/internal/ledger", "/internal/tlv", "/store"},
	"/internal/backup":      {"/audit", "/internal/ledger", "/internal/seal", "/internal/tlv", "/store"},
	"/internal/claims":      {"/internal/jsontext", "/internal/leak", "/internal/rule", "/invalid"},
	"/internal/auditlog":    {"/audit", "/internal/jobs", "/internal/leak", "/internal/ledger", "/internal/rowkey", "/internal/seal", "/internal/tlv", "/store"},
	"/internal/codes":       {"/internal/erase", "/internal/leak", "/internal/ledger", "/internal/seal", "/internal/tlv", "/store"},
	"/receive":              {"/card", "/internal/credential", "/internal/hiding", "/internal/signature"},
	"/receive/endpoint":     {"/receive"},
	"/internal/credential":  {},
	"/internal/discreet":    {"/internal/erase"},
	"/internal/egress":      {},
	"/internal/enum":        {},
	"/internal/fault":       {},
	"/internal/images":      {"/internal/ledger", "/internal/tlv", "/network", "/store"},
	"/internal/jobs":        {"/internal/ledger", "/internal/tlv", "/store"},
	"/internal/keyfile":     {"/internal/ledger"},
	"/internal/keytext":     {},
	"/internal/lastuse":     {"/internal/ledger", "/internal/tlv", "/store"},
	"/internal/leak":        {"/internal/iin"},
	"/internal/listing":     {"/internal/ledger", "/internal/rowkey", "/store"},
	"/internal/outbox":      {"/internal/jobs", "/internal/ledger", "/internal/rowkey", "/internal/tlv", "/store"},
	"/internal/ledger":      {"/internal/layers", "/internal/rowkey", "/internal/seal", "/internal/sums", "/internal/tlv", "/store"},
	"/internal/payload":     {"/internal/erase", "/internal/jobs", "/internal/jsontext", "/internal/ledger", "/internal/rowkey", "/store"},
	"/internal/reseal":      {"/internal/jobs", "/internal/ledger", "/internal/seal", "/internal/tlv", "/store"},
	"/internal/replay":      {"/internal/ledger", "/internal/tlv", "/store"},
	"/internal/rule":        {"/internal/iin", "/internal/iso", "/invalid"},
	"/internal/signature":   {},
	"/internal/spread":      {"/internal/ledger", "/internal/tlv", "/network"},
	"/invalid":              {},
	"/internal/tally":       {},
	"/internal/use":         {"/card", "/internal/ledger", "/internal/replay", "/internal/rule", "/internal/tlv", "/receive", "/store"},
	"/internal/wire":        {"/card", "/internal/hiding"},
	"/store/internal/queue": {"/store"},
	"/store/internal/sums":  {"/store"},
	"/store/internal/watch": {"/store"},
	"/internal/sums":        {"/store"},
	"/vaulttest":            {"", "/internal/iin", "/simnet", "/store/memstore"}, // the suite is another package
	"/webhook":              {"", "/internal/discreet", "/internal/egress", "/internal/signature", "/internal/wire", "/receive"},
	"/webhook/webhooktest":  {"/internal/fault", "/receive", "/webhook"},
}

func TestNeighbours(t *testing.T) {
	direct, _ := deps(t)
	for pkg, only := range neighbours {
		if direct[pkg] == nil {
			t.Errorf("%s does not exist", module+pkg)
		}
		for _, path := range direct[pkg] {
			if name, own := strings.CutPrefix(path, module); own && !contains(only, name) {
				t.Errorf("%s imports %s", module+pkg, path)
			}
		}
	}
}

// TestReceive: a program that receives from a vault does not link the vault.
func TestReceive(t *testing.T) {
	may := []string{"/card", "/internal/enum", "/internal/credential", "/internal/hiding", "/internal/iin", "/internal/iso", "/internal/rule", "/invalid",
		"/internal/signature", "/receive", "/receive/endpoint"}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+"/receive/...").Output()
	if err != nil {
		t.Fatal(err)
	}

	found := 0
	for line := range strings.Lines(string(out)) {
		path := strings.TrimSpace(line)
		name, ours := strings.CutPrefix(path, module)
		if !(ours && contains(may, name)) && path != "github.com/google/uuid" && !strings.HasPrefix(path, "github.com/go-jose/go-jose/v4") {
			t.Errorf("%s/receive depends on %s", module, path)
		}
		found++
	}
	if found < len(may) {
		t.Errorf("found %d dependencies", found)
	}
}

func TestRoot(t *testing.T) {
	_, all := deps(t)
	for _, path := range all[""] {
		for _, bad := range []string{"net/http", "testing", module + "/httpapi", module + "/simnet", module + "/webhook"} {
			if path == bad {
				t.Errorf("the root package depends on %s", path)
			}
		}
	}
}

func TestStores(t *testing.T) {
	direct, all := deps(t)
	for pkg := range all {
		if !strings.HasPrefix(pkg, "/store") {
			continue
		}
		for _, path := range all[pkg] {
			if path == module || strings.HasPrefix(path, module+"/internal/") || path == module+"/httpapi" {
				t.Errorf("%s depends on %s", pkg, path)
			}
		}
	}

	for _, path := range direct["/store"] {
		if strings.Contains(path, ".") && path != "github.com/google/uuid" {
			t.Errorf("store imports %s: it is a leaf", path)
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
