package serve

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"example.org/slipway/internal/backendtest"
)

// seamRemote is where the contents and the catalogue of a world are, if they are not
// in its root: in an S3 bucket and a PostgreSQL database. There time is the database's
// and cannot be moved, and no moment within an operation can be kept.
type seamRemote struct {
	s3               *backendtest.S3Server
	pg               *backendtest.PostgresServer
	bucket, database string
}

func (r *seamRemote) config() string {
	return seamConfig + fmt.Sprintf("  s3: {regionendpoint: \"http://%s\", accesskey: %s, secretkey: %s, bucket: %s, region: %s}\n  catalog: {postgres: %q}\n",
		r.s3.Endpoint, r.s3.AccessKey, r.s3.SecretKey, r.bucket, r.s3.Region, r.pg.DSN(r.database))
}

// copy makes a bucket and a database with the same in it.
func (r *seamRemote) copy(t testing.TB, name string) *seamRemote {
	t.Helper()
	n := &seamRemote{r.s3, r.pg, r.s3.Bucket(t), name}
	r.pg.SQL(t, "postgres", "CREATE DATABASE "+n.database+" TEMPLATE "+r.database)
	if err := copyTree(filepath.Join(r.s3.Dir, r.bucket), filepath.Join(r.s3.Dir, n.bucket), nil); err != nil {
		t.Fatal(err)
	}
	return n
}

func (r *seamRemote) drop(t testing.TB) {
	r.pg.SQL(t, "postgres", "DROP DATABASE "+r.database+" WITH (FORCE)")
	bucket := filepath.Join(r.s3.Dir, r.bucket)
	if err := errors.Join(os.RemoveAll(bucket), os.RemoveAll(bucket+".away")); err != nil {
		t.Error(err)
	}
}

// objects is the directory in which a key of the object store is a path.
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

// die ends the process without anything that a killed one would not do.
func (w *world) die() error {
	err := w.a.local.cat.Close()
	_ = w.close() // of what cannot save anything any more
	return errors.Join(err, w.open())
}

// runRemote is run on S3 and PostgreSQL, in real time.
func (k *seamWalk) runRemote(t *testing.T, steps []seamStep) seamResult {
	dir, name := k.place()
	w := &world{seamBase: k.base, ctx: t.Context(), dir: dir, o: k.base.oracle.clone(), remote: k.base.remote.copy(t, name)}
	defer w.remote.drop(t)
	res := w.sequence(&k.base.seamMoment, steps)
	k.judge(t, res)
	return res
}

// extendRemote runs what begins with a sequence and has at most so many operations more.
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

// TestSeamsRemote runs sequences on S3 and PostgreSQL: all of at most SLIPWAY_SEAMS
// operations, default 1, and then SLIPWAY_SEAMS_RANDOM longer ones, default 4.
// SLIPWAY_SEAMS_SHARD is that of TestSeams.
func TestSeamsRemote(t *testing.T) {
	r := &seamRemote{s3: backendtest.S3(t), pg: backendtest.Postgres(t)}
	r.bucket, r.database = r.s3.Bucket(t), r.pg.CreateDatabase(t)
	k := newSeamWalk(t, r)
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
