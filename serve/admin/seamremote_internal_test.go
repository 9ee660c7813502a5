package admin

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"example.org/slipway/internal/backendtest"
)

// seamRemote holds the contents and the catalogue of a world that are not in its root but in an S3
// bucket and a PostgreSQL database. Time there is the database's and cannot be moved, and no moment
// within an operation can be kept.
//
// Each world has its own bucket. All worlds share the database, because creating and dropping one
// took most of the time.
type seamRemote struct {
	s3               *backendtest.S3Server
	pg               *backendtest.PostgresServer
	bucket, database string
	// db is a lasting connection to the database. worlds counts the worlds that it has seen.
	db     *sql.DB
	worlds int
}

// newSeamRemote starts the servers.
func newSeamRemote(t testing.TB) *seamRemote {
	t.Helper()
	r := &seamRemote{s3: backendtest.S3(t), pg: backendtest.Postgres(t, "jit=off")}
	r.bucket, r.database = r.s3.Bucket(t), r.pg.CreateDatabase(t)
	db, err := sql.Open("pgx", r.pg.DSN(r.database))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	r.db = db
	return r
}

func (r *seamRemote) config() string {
	return seamConfig + fmt.Sprintf("  s3: {regionendpoint: \"http://%s\", accesskey: %s, secretkey: %s, bucket: %s, region: %s}\n  catalog: {postgres: %q}\n",
		r.s3.Endpoint, r.s3.AccessKey, r.s3.SecretKey, r.bucket, r.s3.Region, r.pg.DSN(r.database))
}

// keep makes the present state of the database that of the base. It copies the state into a
// separate schema, which the registry does not know, with a function that copies it back.
func (r *seamRemote) keep(t testing.TB) {
	t.Helper()
	_, err := r.db.Exec(`DO $do$
		DECLARE
			name TEXT;
			s RECORD;
			body TEXT := '';
		BEGIN
			CREATE SCHEMA base;
			FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1 LOOP
				EXECUTE format('CREATE TABLE base.%1$I AS TABLE public.%1$I', name);
				body := body || format('DELETE FROM public.%1$I; INSERT INTO public.%1$I SELECT * FROM base.%1$I;', name);
			END LOOP;
			FOR s IN SELECT * FROM pg_sequences WHERE schemaname = 'public' ORDER BY sequencename LOOP
				body := body || format('PERFORM setval(%L, %s, %L);', 'public.' || quote_ident(s.sequencename),
					COALESCE(s.last_value, s.start_value), s.last_value IS NOT NULL);
			END LOOP;
			EXECUTE format('CREATE FUNCTION base.reset() RETURNS VOID LANGUAGE plpgsql AS %L', 'BEGIN ' || body || ' END');
		END $do$`)
	if err != nil {
		t.Fatal(err)
	}
}

// copy makes a bucket with the contents of the base's bucket and resets the database to the base.
// No connection of the previous world remains, whatever the server still does for it.
func (r *seamRemote) copy(t testing.TB, name string) *seamRemote {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		var others int
		err := r.db.QueryRow(`SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others)
		if err != nil {
			t.Fatal(err)
		}
		if others == 0 {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d connections of the world before do not end", others)
		}
	}
	_, err := r.db.Exec(`SELECT base.reset()`)
	if r.worlds++; err == nil && r.worlds%100 == 0 { // the rows of earlier worlds are in the way
		_, err = r.db.Exec(`VACUUM`)
	}
	n := *r
	n.bucket = name
	if err := errors.Join(err, copyTree(filepath.Join(r.s3.Dir, r.bucket), filepath.Join(r.s3.Dir, n.bucket), nil)); err != nil {
		t.Fatal(err)
	}
	return &n
}

// drop removes the bucket of a world.
func (r *seamRemote) drop(t testing.TB) {
	bucket := filepath.Join(r.s3.Dir, r.bucket)
	if err := errors.Join(os.RemoveAll(bucket), os.RemoveAll(bucket+".away")); err != nil {
		t.Error(err)
	}
}

// objects returns the directory in which the keys of the object store are paths.
func (w *world) objects() string {
	if w.remote != nil {
		return filepath.Join(w.remote.s3.Dir, w.remote.bucket)
	}
	return w.root()
}

// catalogue opens the tables behind the registry's back.
func (w *world) catalogue() (*sql.DB, error) {
	if w.remote != nil {
		return sql.Open("pgx", w.remote.pg.DSN(w.remote.database))
	}
	return sql.Open("sqlite", "file:"+filepath.Join(w.root(), "catalog.db")+"?_pragma=busy_timeout(10000)")
}

// die ends the process and does nothing that a killed process would not do.
func (w *world) die() error {
	err := w.a.local.Catalog.Close()
	_ = w.close() // closes what can no longer save anything
	return errors.Join(err, w.open())
}

// runRemote is like run, on S3 and PostgreSQL, in real time.
func (k *seamWalk) runRemote(t *testing.T, steps []seamStep) seamResult {
	dir, name := k.place()
	w := &world{seamBase: k.base, ctx: t.Context(), dir: dir, o: k.base.oracle.clone(), remote: k.base.remote.copy(t, name)}
	defer w.remote.drop(t)
	res := w.sequence(&k.base.seamMoment, steps)
	k.judge(t, res)
	return res
}

// extendRemote runs the sequences that begin with begin and have at most depth operations more.
func (k *seamWalk) extendRemote(t *testing.T, ops []seamOp, begin []seamStep, depth int) {
	for i, op := range ops {
		if len(begin) == 0 && i%k.shards != k.shard {
			continue
		}
		steps := append(slices.Clip(begin), seamStep{seamOp: op})
		if res := k.runRemote(t, steps); depth > 1 && !res.nothing {
			k.extendRemote(t, ops, steps, depth-1)
		}
	}
}

// lossRemote runs some sequences in which a backup has to bring something back.
func (k *seamWalk) lossRemote(t *testing.T) {
	for _, text := range []string{"push-loose,backup,delete-loose,restore", "push-loose,backup,lose-catalogue,restore",
		"backup,lose-catalogue,push,restore", "backup,lose-catalogue,gc,repair,restore", "lose-catalogue,push"} {
		steps, err := parseSequence(text)
		if err != nil {
			t.Fatal(err)
		}
		k.runRemote(t, steps)
	}
}

// TestSeamsRemote runs sequences on S3 and PostgreSQL: first all of at most SLIPWAY_SEAMS
// operations (default 1), then SLIPWAY_SEAMS_RANDOM longer ones (default 4). SLIPWAY_SEAMS_SHARD is
// that of TestSeams.
func TestSeamsRemote(t *testing.T) {
	t.Parallel()
	r := newSeamRemote(t)
	k := newSeamWalk(t, r)
	r.keep(t)
	ops := slices.DeleteFunc(seamOps(), func(op seamOp) bool { return slices.Contains([]string{"day", "clock", "upgrade", "move"}, op.name) })
	if *seamsFlag != "" {
		steps, err := parseSequence(*seamsFlag)
		if err != nil {
			t.Fatal(err)
		}
		k.runRemote(t, steps)
		return
	}
	k.readShard(t)
	k.extendRemote(t, ops, nil, seamNumber(t, "SLIPWAY_SEAMS", 1))
	if k.shard == 0 {
		k.lossRemote(t)
	}
	seed := uint64(seamNumber(t, "SLIPWAY_SEAMS_SEED", 1))
	for i := range seamNumber(t, "SLIPWAY_SEAMS_RANDOM", fewer(4)) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		steps := make([]seamStep, 2+rng.IntN(5))
		for j := range steps {
			steps[j].seamOp = ops[rng.IntN(len(ops))]
		}
		k.runRemote(t, steps)
	}
	k.summary(t)
}
