package pgstore_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cardvault/cardvault/store/pgstore"
)

// TestOwner: Migrate uses no schema in which a role that it does not trust may replace functions,
// also if that role has migrated it.
func TestOwner(t *testing.T) {
	server := postgres.Get(t)
	server.SQL(t, "postgres", "CREATE DATABASE owned")
	server.SQL(t, "postgres", `CREATE ROLE owner_vault LOGIN; CREATE ROLE owner_intern LOGIN; CREATE ROLE owner_group; GRANT owner_group TO owner_vault;
		CREATE ROLE owner_super SUPERUSER; CREATE ROLE owner_database; GRANT owner_database TO owner_vault`)
	server.SQL(t, "owned", "GRANT CREATE ON DATABASE owned TO owner_intern, owner_vault")
	as := func(role string) string { return strings.Replace(server.URL("owned"), "cardvault@", role+"@", 1) }
	const (
		vault  = "owner_vault"
		intern = "owner_intern"
		admin  = "cardvault" // a superuser
	)
	var version int
	if err := pool(t, as(admin)).QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		what, before, migrates string
		refused                bool
	}{
		{"the role's own", `CREATE SCHEMA s AUTHORIZATION owner_vault`, vault, false},
		{"of its group", `CREATE SCHEMA s AUTHORIZATION owner_group`, vault, false},
		{"of a superuser", `CREATE SCHEMA s AUTHORIZATION owner_super; GRANT CREATE, USAGE ON SCHEMA s TO owner_vault`, vault, false},
		{"of the owner of the database", `ALTER DATABASE owned OWNER TO owner_database; CREATE SCHEMA s AUTHORIZATION pg_database_owner`, vault, false},
		{"of the owner of the database, who is another", `ALTER DATABASE owned OWNER TO owner_intern; CREATE SCHEMA s AUTHORIZATION pg_database_owner; GRANT CREATE, USAGE ON SCHEMA s TO owner_vault`, vault, true},
		{"of a stranger", `CREATE SCHEMA s AUTHORIZATION owner_intern; GRANT ALL ON SCHEMA s TO owner_vault`, vault, true},
		{"of a stranger, for a superuser", `CREATE SCHEMA s AUTHORIZATION owner_intern`, admin, true},
		{"in which a stranger may create", `CREATE SCHEMA s AUTHORIZATION owner_vault; GRANT CREATE ON SCHEMA s TO owner_intern`, vault, true},
		{"in which all may create", `CREATE SCHEMA s AUTHORIZATION owner_vault; GRANT CREATE ON SCHEMA s TO PUBLIC`, vault, true},
		{"with a function of a stranger", `CREATE SCHEMA s AUTHORIZATION owner_vault; CREATE FUNCTION s .f() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION s .f() OWNER TO owner_intern`, vault, true},
		{"with a table of a stranger", `CREATE SCHEMA s AUTHORIZATION owner_vault; CREATE TABLE s .t (); ALTER TABLE s .t OWNER TO owner_intern`, vault, true},
		{"that is given away as it is made", `ALTER DEFAULT PRIVILEGES FOR ROLE owner_vault GRANT CREATE ON SCHEMAS TO owner_intern`, vault, true},
		{"that is not", `ALTER DEFAULT PRIVILEGES FOR ROLE owner_vault REVOKE CREATE ON SCHEMAS FROM owner_intern`, vault, false},
		{"that all may use", `CREATE SCHEMA s AUTHORIZATION owner_vault; GRANT USAGE ON SCHEMA s TO PUBLIC`, vault, false},
	} {
		if strings.Contains(test.before, "pg_database_owner") && version < 140000 {
			continue
		}
		name := fmt.Sprint("owned ", i)
		server.SQL(t, "owned", strings.ReplaceAll(test.before, " s ", fmt.Sprintf(" %q ", name)))
		for range 2 { // new, and once it has tables
			err := pgstore.Migrate(t.Context(), pool(t, as(test.migrates)), &pgstore.Options{Schema: name})
			if errors.Is(err, pgstore.ErrOwner) != test.refused || !test.refused && err != nil {
				t.Errorf("a schema %s: Migrate = %v, want it refused: %t", test.what, err, test.refused)
			}
			if named := regexp.MustCompile(`: \["(owner_intern|pg_database_owner|PUBLIC)"\]$`); test.refused && !named.MatchString(fmt.Sprint(err)) {
				t.Errorf("a schema %s: %v", test.what, err)
			}
		}
	}

	opts := &pgstore.Options{Schema: "made by a stranger"}
	if err := pgstore.Migrate(t.Context(), pool(t, as(intern)), opts); err != nil {
		t.Fatal(err)
	}
	server.SQL(t, "owned", `GRANT ALL ON SCHEMA "made by a stranger" TO owner_vault; GRANT ALL ON ALL TABLES IN SCHEMA "made by a stranger" TO owner_vault`)
	if err := pgstore.Migrate(t.Context(), pool(t, as(vault)), opts); !errors.Is(err, pgstore.ErrOwner) {
		t.Errorf("a schema that a stranger has migrated: Migrate = %v", err)
	}
}
