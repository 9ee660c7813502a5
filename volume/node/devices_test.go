package node_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/oci/volref"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/node"
)

// standIn is a program with the interface of rbd, for kernels without its devices. It makes loop
// devices from the files ID of a directory. It makes a clone from v-a.
const standIn = `#!/bin/bash
dir=$(dirname "$0")
echo "$*" >>"$dir/calls"
case "$1 $2" in
"device list")
	echo -n '['; sep=
	for f in "$dir"/mapped/*; do [ -e "$f" ] || continue; echo -n "$sep"; cat "$f"; sep=,; done
	echo ']' ;;
"device map")
	for a; do spec=$a; [ "$prev" = --keyfile ] && cat "$a" >>"$dir/keys"; prev=$a; done
	IFS=/ read -r pool ns image <<<"$spec"
	snap=${image#*@}; [ "$snap" = "$image" ] && snap=-
	id=${image%@*}
	ro=; [[ " $* " = *" --read-only "* ]] && ro=-r
	[ "$ns" = clones ] && [ ! -e "$dir/images/$id" ] && cp --sparse=always "$dir/images/v-a" "$dir/images/$id"
	[ -e "$dir/images/$id" ] || { echo "rbd: no such image" >&2; exit 2; }
	dev=$(losetup $ro --find --show "$dir/images/$id") || exit 1
	echo "{\"pool\":\"$pool\",\"namespace\":\"$ns\",\"name\":\"$id\",\"snap\":\"$snap\",\"device\":\"$dev\"}" >"$dir/mapped/$(basename $dev)"
	[ -e "$dir/slow" ] && exec sleep 30
	echo "$dev" ;;
"device unmap")
	for a; do dev=$a; done
	losetup -d "$dev" && rm "$dir/mapped/$(basename $dev)" ;;
*) exit 22 ;;
esac
`

// deviceBed is a bed whose image v-a is also known to the stand-in.
func deviceBed(t *testing.T) (b *bed, dir string, img node.Image, with func(*node.Options)) {
	t.Helper()
	if _, err := exec.LookPath("losetup"); err != nil {
		t.Skip(err)
	}
	b = newBed(t)
	dir = filepath.Join(b.base, "rbd")
	for _, d := range []string{"images", "mapped"} {
		ok(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	program := filepath.Join(dir, "rbd")
	ok(t, os.WriteFile(program, []byte(standIn), 0o755))
	b.credential = func(_ context.Context, clones bool) (volref.Credential, error) {
		c := volref.Credential{User: "u", Key: "secret", Monitors: "10.0.0.1:6789"}
		if clones {
			c.Clones = "clones"
		}
		return c, nil
	}
	img = b.image("a", volref.Ext4, tree)
	img.Record.Place.Driver, img.Record.Place.Pool, img.Record.Place.Namespace = "rbd", "pool", "images"
	ok(t, os.Link(filepath.Join(b.base, "a.img"), filepath.Join(dir, "images", "v-a")))
	return b, dir, img, func(o *node.Options) {
		o.Mapping, o.Program = "auto", program
		o.SetProbe(func(_ context.Context, kind, _ string) error {
			if kind == "krbd" {
				return nil
			}
			return errors.New("no")
		})
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	b, at, img, with := deviceBed(t)
	ctx := context.Background()
	ok(t, os.MkdirAll(b.records+"/devices", 0o700))
	ok(t, os.WriteFile(b.records+"/devices/.key-1", []byte("secret"), 0o600)) // left by a killed one
	m := b.open(with)
	dir, err := m.Local(ctx, img)
	ok(t, err)
	b.want(dir, "bin/tool", tree["bin/tool"])
	own, err := m.Network(ctx, "c", img)
	ok(t, err)
	ok(t, os.WriteFile(filepath.Join(own, "mine"), []byte("1"), 0o644))
	st, err := m.Status(ctx)
	ok(t, err)
	for _, v := range st.Volumes {
		if !strings.HasPrefix(v.File, "/dev/loop") {
			t.Errorf("volume %s is mounted from %s", v.Name, v.File)
		}
	}
	// The volume that is read is also mapped below, for its lease.
	if got := b.counts(); got.Mapped != 1 {
		t.Errorf("mapped below: %+v", got)
	}
	ok(t, m.Close())
	// The next Manager knows of the devices, even if it makes no more of them.
	m = b.open()
	again, err := m.Local(ctx, img)
	if err != nil || again != dir {
		t.Errorf("after a restart: %q, %v, want %q", again, err, dir)
	}
	b.want(own, "mine", "1")
	program := func(o *node.Options) {
		o.Program = filepath.Join(at, "rbd")
		o.Credential = func(ctx context.Context, r *volref.Record, volume string, clones bool) (volref.Credential, error) {
			if volume != "v-a" || r.Manifest != img.Record.Manifest {
				t.Errorf("a credential is asked for volume %s of %s", volume, r.Manifest)
			}
			return b.credential(ctx, clones)
		}
	}
	ok(t, m.Close())
	m = b.open(program)
	ok(t, errors.Join(m.DropLocal(ctx, "v-a"), m.DropNetwork(ctx, "c")))
	b.nothing()
	left, err := os.ReadDir(filepath.Join(at, "mapped"))
	ok(t, err)
	keys, err := filepath.Glob(b.records + "/devices/*")
	ok(t, err)
	if len(left)+len(keys) != 0 {
		t.Errorf("left: %v, %v", left, keys)
	}
	calls, err := os.ReadFile(filepath.Join(at, "calls"))
	ok(t, err)
	for _, want := range []string{"--read-only", "pool/images/v-a@slipway", "pool/clones/c-", "--mon_host 10.0.0.1:6789", "--id u", "osd_request_timeout=300"} {
		if !strings.Contains(string(calls), want) {
			t.Errorf("the program was not called with %q:\n%s", want, calls)
		}
	}
	if strings.Contains(string(calls), "secret") {
		t.Errorf("the key was an argument:\n%s", calls)
	}
	if key, err := os.ReadFile(filepath.Join(at, "keys")); err != nil || !strings.HasPrefix(string(key), "secret") {
		t.Errorf("keys: %q, %v", key, err)
	}
}

// TestDeviceComesLate checks that a device that appears after its program was given up is removed.
func TestDeviceComesLate(t *testing.T) {
	t.Parallel()
	b, at, img, with := deviceBed(t)
	m := b.open(with, func(o *node.Options) { o.Limits.Call = 2 * time.Second })
	slow := filepath.Join(at, "slow")
	ok(t, os.WriteFile(slow, nil, 0o600))
	if _, err := m.Local(context.Background(), img); err == nil {
		t.Error("it was mounted")
	}
	ok(t, os.Remove(slow))
	b.nothing()
	b.eventually("no device is left", func() bool {
		left, err := os.ReadDir(filepath.Join(at, "mapped"))
		return err == nil && len(left) == 0
	})
}

// TestDevicesNot checks that user space serves what the kernel cannot map, and what needs another
// credential later.
func TestDevicesNot(t *testing.T) {
	t.Parallel()
	b, at, img, with := deviceBed(t)
	ctx := context.Background()
	m := b.open(with)
	good := b.credential
	img.Credential = func(ctx context.Context, clones bool) (volref.Credential, error) {
		c, err := good(ctx, clones)
		c.Expires = time.Now().Add(time.Hour)
		return c, err
	}
	_, err := m.Local(ctx, img)
	ok(t, err)
	if calls, err := os.ReadFile(filepath.Join(at, "calls")); err == nil {
		t.Errorf("with a credential that expires the program was called:\n%s", calls)
	}
	ok(t, m.DropLocal(ctx, "v-a"))
	ok(t, m.Close())
	ok(t, os.Remove(filepath.Join(at, "images", "v-a")))
	img.Credential = good
	m = b.open(with)
	dir, err := m.Local(ctx, img)
	ok(t, err)
	b.want(dir, "etc/motd", "hello\n")
	ok(t, m.DropLocal(ctx, "v-a"))
	ok(t, m.Close())
	m = b.open(with, func(o *node.Options) { o.Mapping = "krbd" })
	if _, err := m.Local(ctx, img); !errors.Is(err, block.ErrNotFound) {
		t.Errorf("krbd alone, without the image: %v, want %v", err, block.ErrNotFound)
	}
	b.nothing()
	for mapping, want := range map[string]string{"nbd": "no", "nonsense": "not known"} {
		o := b.options()
		with(&o)
		o.Mapping, o.Dir, o.Run = mapping, b.records+"2", b.run+"2"
		if _, err := node.Open(ctx, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mapping %s: %v", mapping, err)
		}
	}
}
