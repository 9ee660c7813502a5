package kubelet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"example.org/slipway/agent/registries"
	"example.org/slipway/oci/client"
)

// text returns a message field that is a text or a message.
func text(b []byte, n protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// pullMessage returns a PullImageRequest.
func pullMessage(image, user, password string) []byte {
	b := text(nil, 1, string(text(nil, 1, image)))
	return text(b, 2, string(text(text(nil, 1, user), 2, password)))
}

// echo acts as a containerd that answers each message with the message and its method. It answers
// "fail" with an error.
func echo(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	md, _ := metadata.FromIncomingContext(s.Context())
	if err := s.SendHeader(metadata.Pairs("called", method, "token", strings.Join(md.Get("token"), ","))); err != nil {
		return err
	}
	s.SetTrailer(metadata.Pairs("ended", "yes"))
	for {
		var m rawMessage
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if string(m.data) == "fail" {
			return status.Error(codes.NotFound, "no such image")
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

// criBed is a proxy between a client and echo.
func criBed(t *testing.T) (*grpc.ClientConn, *registries.Keychain, *bytes.Buffer) {
	t.Helper()
	return criBedWith(t, func(int64) { t.Error("space is freed although no image is removed") })
}

func criBedWith(t *testing.T, free func(int64)) (*grpc.ClientConn, *registries.Keychain, *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	listen := func(name string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ended := make(chan error, 2)
	back := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(echo))
	l := listen("back")
	go func() { ended <- back.Serve(l) }()
	keys, err := registries.OpenKeychain(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	use := func() DiskUse { return DiskUse{"/agent/snapshots", 1000, 10} }
	p, err := NewProxy(filepath.Join(dir, "back"), keys, use, free, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	front := listen("front")
	go func() { ended <- p.Serve(front) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "front"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), p.Close()); err != nil {
			t.Error(err)
		}
		back.Stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return conn, keys, &log
}

func TestImageProxy(t *testing.T) {
	conn, keys, log := criBed(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "token", "of-the-caller")
	const method = "/runtime.v1.ImageService/PullImage"

	in, out := rawMessage{pullMessage("r.example/team/app:v1", "alice", "hunter2")}, rawMessage{}
	var head, trail metadata.MD
	if err := conn.Invoke(ctx, method, &in, &out, grpc.Header(&head), grpc.Trailer(&trail)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in.data, out.data) {
		t.Errorf("the answer is %q", out.data)
	}
	if head.Get("called")[0] != method || head.Get("token")[0] != "of-the-caller" || len(trail.Get("ended")) != 1 {
		t.Errorf("header %v, trailer %v", head, trail)
	}
	if c, ok := keys.Credential(registries.Reference{Host: "r.example", Repo: "team/app"}); !ok || c != (client.Credential{Username: "alice", Password: "hunter2"}) {
		t.Error("the credential was not learnt")
	}
	if err := conn.Invoke(ctx, "/runtime.v1.ImageService/RemoveImage", &rawMessage{pullMessage("r.example/team/other:v1", "bob", "secret")}, &out); err != nil {
		t.Error(err)
	}
	if _, ok := keys.Credential(registries.Reference{Host: "r.example", Repo: "team/other"}); ok {
		t.Error("a credential was learnt from a call that pulls nothing")
	}
	err := conn.Invoke(ctx, method, &rawMessage{[]byte("fail")}, &out)
	if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no such image" {
		t.Errorf("containerd's error arrives as %v", err)
	}
	if err := conn.Invoke(ctx, method, &rawMessage{pullMessage("hunter2 is no image", "alice", "hunter3")}, &out); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "hunter3") {
		t.Errorf("a password is in the log:\n%s", log)
	}
}

func TestImageProxyStreams(t *testing.T) {
	conn, _, _ := criBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/runtime.v1.RuntimeService/Events")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "", strings.Repeat("large", 300_000)} {
		if err := s.SendMsg(&rawMessage{[]byte(want)}); err != nil {
			t.Fatal(err)
		}
		var got rawMessage
		if err := s.RecvMsg(&got); err != nil || string(got.data) != want {
			t.Fatalf("%d bytes of %d come back, error %v", len(got.data), len(want), err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&rawMessage{}); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream is %v", err)
	}
	if len(s.Trailer().Get("ended")) != 1 {
		t.Errorf("trailer %v", s.Trailer())
	}
}

// TestImageProxySizes checks that containerd's answer about the disk is completed and that other
// answers are left alone.
func TestImageProxySizes(t *testing.T) {
	conn, _, log := criBed(t)
	fs := func(dir string, bytes, inodes uint64) string {
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7) // timestamp
		b = text(b, 2, string(text(nil, 1, dir)))
		return string(appendWireNumber(appendWireNumber(b, 3, bytes), 4, inodes))
	}
	const method = "/runtime.v1.ImageService/ImageFsInfo"
	ask := func(in []byte) []byte {
		t.Helper()
		var out rawMessage
		if err := conn.Invoke(t.Context(), method, &rawMessage{in}, &out); err != nil {
			t.Fatal(err)
		}
		return out.data
	}
	answer := text(text(text(nil, 1, fs("/agent/snapshots", 234, 5)), 1, fs("/overlayfs", 50, 6)), 2, fs("/agent/snapshots", 1, 1))
	type usage struct {
		dir           string
		bytes, inodes uint64
	}
	var got []usage
	err := eachText(ask(answer), func(n protowire.Number, v []byte) error {
		var u usage
		err := eachText(v, func(n protowire.Number, v []byte) (err error) {
			switch n {
			case 2:
				_, _, tag := protowire.ConsumeTag(v)
				dir, _ := protowire.ConsumeBytes(v[tag:])
				u.dir = string(dir)
			case 3:
				u.bytes, err = wireNumber(v)
			case 4:
				u.inodes, err = wireNumber(v)
			}
			return err
		})
		got = append(got, u)
		return err
	})
	want := []usage{{"/agent/snapshots", 1234, 15}, {"/overlayfs", 50, 6}, {"/agent/snapshots", 1, 1}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v, error %v", got, want, err)
	}
	if bad := text(nil, 1, "\xff"); !bytes.Equal(ask(bad), bad) || !strings.Contains(log.String(), "could not be read") {
		t.Errorf("an answer that cannot be read is changed, or nothing is said of it: %s", log)
	}
}

// TestImageProxyRemoval checks that the bytes of a removed image are freed before the answer
// comes, and that an image that is not removed keeps its bytes.
func TestImageProxyRemoval(t *testing.T) {
	var freed []int64 // written before an answer, read after it
	conn, _, log := criBedWith(t, func(n int64) { freed = append(freed, n) })
	image := func(size uint64) []byte { // the echo of a request is the image's status
		spec := text(nil, 1, "r.example/app:1")
		return text(nil, 1, string(protowire.AppendVarint(protowire.AppendTag(spec, 4, protowire.VarintType), size)))
	}
	for _, c := range []struct {
		in   []byte
		want []int64
	}{
		{image(5000), []int64{5000}},
		{text(nil, 1, string(text(nil, 1, "r.example/none:1"))), nil},
		{image(math.MaxUint64), []int64{math.MaxInt64}},
		{[]byte("fail"), nil},
		{text(nil, 1, "\xff"), nil},
	} {
		freed = nil
		var out rawMessage
		err := conn.Invoke(t.Context(), "/runtime.v1.ImageService/RemoveImage", &rawMessage{c.in}, &out)
		if (err != nil) != (string(c.in) == "fail") || !slices.Equal(freed, c.want) {
			t.Errorf("%q: freed %v, want %v; error %v", c.in, freed, c.want, err)
		}
	}
	if !strings.Contains(log.String(), "its files stay") {
		t.Errorf("nothing is said of sizes that are not known: %s", log)
	}
}

func TestPullRequest(t *testing.T) {
	auth := func(b []byte) []byte { return text(text(nil, 1, string(text(nil, 1, "r.example/app"))), 2, string(b)) }
	for name, w := range map[string]struct {
		in   []byte
		want client.Credential
	}{
		"password":       {pullMessage("r.example/app", "u", "p"), client.Credential{Username: "u", Password: "p"}},
		"basic":          {auth(text(nil, 3, "dTpwOnE=")), client.Credential{Username: "u", Password: "p:q"}},
		"identity token": {auth(text(nil, 5, "refresh")), client.Credential{RefreshToken: "refresh"}},
		"registry token": {auth(text(nil, 6, "access")), client.Credential{AccessToken: "access"}},
		"other fields":   {append(protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.VarintType), 7), auth(nil)...), client.Credential{}},
	} {
		image, got, err := pullRequest(w.in)
		if err != nil || image != "r.example/app" || got != w.want {
			t.Errorf("%s: image %q, as expected: %v, error %v", name, image, got == w.want, err)
		}
	}
	for _, bad := range [][]byte{{0xff}, {0x0a, 0x7f, 1}, {0x08}, {0x0a, 0x02, 0x0a, 0x09}} {
		if _, _, err := pullRequest(bad); !errors.Is(err, errWire) {
			t.Errorf("%x: error %v", bad, err)
		}
	}
}

func FuzzPullRequest(f *testing.F) {
	f.Add(pullMessage("r.example/app", "u", "p"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, c, err := pullRequest(b)
		if err != nil && c.Password != "" && strings.Contains(err.Error(), c.Password) && len(c.Password) > 10 {
			t.Error("the error quotes a password")
		}
	})
}
