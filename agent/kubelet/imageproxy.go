// Package kubelet answers kubelet: calls of its image service, which it makes through the
// agent, and requests for credentials.
package kubelet

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"example.org/slipway/agent/registries"
	"example.org/slipway/oci/client"
)

// maxCRI is the size in bytes of the largest message that is forwarded. It is kubelet's
// own limit.
const maxCRI = 16 << 20

// Proxy forwards every call of kubelet's image service to containerd unchanged. On the way it learns
// with which credential an image is pulled, because a snapshotter learns that nowhere
// else.
//
// It adds to what containerd reports of disk use, because no snapshot contains the files
// that all images share. When an image is removed, it frees as many bytes of these files
// as kubelet counts for the image.
//
// It implements no service, so it works with any version of kubelet and containerd.
type Proxy struct {
	keys *registries.Keychain
	disk func() DiskUse
	free func(bytes int64)
	log  *slog.Logger
	srv  *grpc.Server
	conn *grpc.ClientConn
}

// DiskUse is what the shared files use, and the directory by which containerd names their
// file system.
type DiskUse struct {
	Dir           string
	Bytes, Inodes uint64
}

// NewProxy creates a proxy to the socket of containerd. disk reports what shared files use,
// and free frees as many bytes of them.
func NewProxy(containerd string, keys *registries.Keychain, disk func() DiskUse, free func(bytes int64), log *slog.Logger) (*Proxy, error) {
	conn, err := grpc.NewClient("unix://"+containerd,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket of this machine
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(maxCRI), grpc.MaxCallSendMsgSize(maxCRI)))
	if err != nil {
		return nil, fmt.Errorf("reach containerd at %s: %w", containerd, err)
	}
	p := &Proxy{keys: keys, disk: disk, free: free, log: log, conn: conn}
	p.srv = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.pass),
		grpc.MaxRecvMsgSize(maxCRI), grpc.MaxSendMsgSize(maxCRI))
	return p, nil
}

// Serve answers kubelet on l until Close is called.
func (p *Proxy) Serve(l net.Listener) error {
	if err := p.srv.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the image service on %s: %w", l.Addr(), err)
	}
	return nil
}

// Close ends all calls.
func (p *Proxy) Close() error {
	p.srv.Stop()
	return p.conn.Close()
}

// pass forwards one call.
func (p *Proxy) pass(_ any, in grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return status.Error(codes.Internal, "the call has no method")
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	out, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	requests := make(chan error, 1)
	var done outcome // forward sets it before it returns
	go func() { requests <- p.forward(method, in, out, &done) }()
	err = p.backward(method, out, in)
	cancel()
	if sent := <-requests; err == nil && sent != nil && !errors.Is(sent, context.Canceled) && status.Code(sent) != codes.Canceled {
		err = sent
	}
	switch {
	case err == nil && done.removed > 0:
		p.free(done.removed) // before kubelet gets its answer, because it looks at the disk after that
	case err != nil && done.forget != nil:
		if err := done.forget(); err != nil {
			p.log.Warn("the credential of a pull that failed is kept", "err", err)
		}
	}
	return err
}

// outcome is what remains to be done for a call when containerd has answered.
type outcome struct {
	removed int64        // bytes of an image, if the call removes it
	forget  func() error // forgets the credential of a pull, if the pull fails
}

func (p *Proxy) forward(method string, in grpc.ServerStream, out grpc.ClientStream, done *outcome) error {
	for {
		var m rawMessage
		if err := in.RecvMsg(&m); errors.Is(err, io.EOF) {
			return out.CloseSend()
		} else if err != nil {
			return err
		}
		switch service, call, _ := strings.Cut(method, ".ImageService/"); call {
		case "PullImage":
			done.forget = p.learn(m.data)
		case "RemoveImage":
			done.removed = p.sizeOf(out.Context(), service+".ImageService/ImageStatus", m.data)
		}
		if err := out.SendMsg(&m); err != nil {
			return nil // backward returns the reason
		}
	}
}

func (p *Proxy) backward(method string, out grpc.ClientStream, in grpc.ServerStream) error {
	headed := false
	for {
		var m rawMessage
		err := out.RecvMsg(&m)
		if !headed {
			headed = true
			if md, herr := out.Header(); herr == nil {
				if err := in.SendHeader(md); err != nil {
					return err
				}
			}
		}
		if err != nil {
			in.SetTrailer(out.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if strings.HasSuffix(method, ".ImageService/ImageFsInfo") {
			m.data = p.completed(m.data)
		}
		if err := in.SendMsg(&m); err != nil {
			return err
		}
	}
}

// learn takes the credential out of a PullImageRequest, and returns a function that
// forgets it.
func (p *Proxy) learn(request []byte) (forget func() error) {
	image, cred, err := pullRequest(request)
	if err != nil {
		p.log.Warn("a pull of kubelet's could not be read; if its image needs a pull secret, its files cannot be fetched", "err", err)
		return nil
	}
	if cred == (client.Credential{}) || image == "" {
		return nil
	}
	ref, err := registries.Parse(image)
	if err == nil {
		forget, err = p.keys.Try(ref, cred)
	}
	if err != nil {
		p.log.Warn("the credential of a pull is not kept", "image", image, "err", err)
	}
	return forget
}

// sizeOf returns the size in bytes of the image that is about to be removed, as
// containerd reports it to kubelet, or 0 if there is no such image. It sends the
// RemoveImageRequest as a request for the status, because both are {image = 1}. The
// answer is {image = 1 {size = 4}}.
func (p *Proxy) sizeOf(ctx context.Context, method string, request []byte) (size int64) {
	var answer rawMessage
	err := p.conn.Invoke(ctx, method, &rawMessage{request}, &answer)
	if err == nil {
		err = eachText(answer.data, func(n protowire.Number, image []byte) error {
			if n == 1 {
				v, err := varint(image, 4)
				size = int64(min(v, math.MaxInt64))
				return err
			}
			return nil
		})
	}
	if err != nil {
		p.log.Warn("the size of an image that is removed is not known; its files stay until there is no room", "err", err)
		return 0
	}
	return size
}

// completed adds the shared files to an ImageFsInfoResponse of the CRI, v1.
func (p *Proxy) completed(response []byte) []byte {
	out, err := addDiskUse(response, p.disk())
	if err != nil {
		p.log.Warn("what containerd says of the disk could not be read; kubelet does not learn of the files that images share", "err", err)
		return response
	}
	return out
}

// addDiskUse changes one of the image file systems, image_filesystems = 1 {fs_id = 2
// {mountpoint = 1}, used_bytes = 3 {value = 1}, inodes_used = 4 {value = 1}}. If a field
// occurs twice in a message, the last one counts.
func addDiskUse(response []byte, add DiskUse) (out []byte, err error) {
	for b := response; len(b) > 0; {
		num, typ, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil, errWire
		}
		field := b[:n]
		b = b[n:]
		if num != 1 || typ != protowire.BytesType {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		fs, _ := protowire.ConsumeBytes(field[tag:])
		var dir string
		var bytes, inodes uint64
		err := eachText(fs, func(n protowire.Number, v []byte) (err error) {
			switch n {
			case 2:
				return eachText(v, func(n protowire.Number, v []byte) error {
					if n == 1 {
						dir = string(v)
					}
					return nil
				})
			case 3:
				bytes, err = wireNumber(v)
			case 4:
				inodes, err = wireNumber(v)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if dir == add.Dir {
			fs = appendWireNumber(slices.Clone(fs), 3, bytes+add.Bytes)
			fs = appendWireNumber(fs, 4, inodes+add.Inodes)
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, 1, protowire.BytesType), fs)
	}
	return out, nil
}

// wireNumber reads a message {value = 1}. A missing value is 0.
func wireNumber(b []byte) (uint64, error) { return varint(b, 1) }

// varint reads a numeric field of a message. A missing field is 0.
func varint(b []byte, field protowire.Number) (v uint64, err error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, errWire
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return 0, errWire
		}
		if num == field && typ == protowire.VarintType {
			v, _ = protowire.ConsumeVarint(b[n:])
		}
		b = b[n+size:]
	}
	return v, nil
}

// appendWireNumber appends a field that is a message {value = 1}.
func appendWireNumber(b []byte, field protowire.Number, v uint64) []byte {
	m := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), v)
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
}

// errWire says that bytes are not a message of the expected form.
var errWire = errors.New("malformed message")

// pullRequest reads the image and the credential of a PullImageRequest of the CRI, v1:
// image = 1 {image = 1}, auth = 2 {username = 1, password = 2, auth = 3, server_address =
// 4, identity_token = 5, registry_token = 6}.
func pullRequest(b []byte) (image string, c client.Credential, err error) {
	err = eachText(b, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			return eachText(v, func(n protowire.Number, v []byte) error {
				if n == 1 {
					image = string(v)
				}
				return nil
			})
		case 2:
			return eachText(v, func(n protowire.Number, v []byte) error {
				switch n {
				case 1:
					c.Username = string(v)
				case 2:
					c.Password = string(v)
				case 3:
					if user, pass, ok := decodeBasic(string(v)); ok {
						c.Username, c.Password = user, pass
					}
				case 5:
					c.RefreshToken = string(v)
				case 6:
					c.AccessToken = string(v)
				}
				return nil
			})
		}
		return nil
	})
	return image, c, err
}

// eachText calls do for each field of a message that is a text or a message.
func eachText(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errWire
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return errWire
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errWire
		}
		if err := do(num, v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// decodeBasic decodes the base64 of user:password, the form of docker's configuration.
func decodeBasic(s string) (user, pass string, ok bool) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return "", "", false
	}
	user, pass, ok = strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
	return user, pass, ok
}

// rawMessage is a message that is forwarded unchanged.
type rawMessage struct{ data []byte }

// rawCodec neither encodes nor decodes. It has the name of the codec whose messages it
// carries.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*rawMessage)
	if !ok {
		return nil, fmt.Errorf("pass on a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.data)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*rawMessage)
	if !ok {
		return fmt.Errorf("pass on a %T", v)
	}
	m.data = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }
