package s3store

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Source says where the store's credentials come from.
type Source string

// Sources of credentials.
const (
	// FromChain asks for AccessKey first, then the environment, the shared file and
	// the cloud, and takes the first that has any.
	FromChain Source = ""
	// FromOptions takes AccessKey, SecretKey and SessionToken of the options.
	FromOptions Source = "static"
	// FromEnvironment reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
	// AWS_SESSION_TOKEN.
	FromEnvironment Source = "environment"
	// FromFile reads a profile of the AWS credentials file.
	FromFile Source = "file"
	// FromCloud asks the machine's or the container's identity: EC2, ECS, EKS pod
	// identity, or a web identity token (AWS_WEB_IDENTITY_TOKEN_FILE).
	FromCloud Source = "iam"
	// Anonymous signs nothing: for public buckets, which are read-only.
	Anonymous Source = "anonymous"
)

// refreshPause is the shortest time between two searches for new credentials after a
// refusal, so that there is not one search for every refused request.
const refreshPause = time.Second

// keys holds the store's credentials. Credentials from files, the environment and the
// cloud are read again when the server refuses the old ones.
type keys struct {
	creds  *credentials.Credentials
	client *http.Client // asks the cloud
	fixed  bool         // the credentials cannot be replaced

	mu   sync.Mutex
	last time.Time // when new credentials were last searched for
}

// newKeys opens the source. It is an error if it has no credentials at all.
func newKeys(ctx context.Context, o *Options, client *http.Client) (*keys, error) {
	k := &keys{client: client}
	static := &credentials.Static{Value: credentials.Value{
		AccessKeyID: o.AccessKey, SecretAccessKey: o.SecretKey, SessionToken: o.SessionToken,
		SignerType: credentials.SignatureV4,
	}}
	env, cloud := &credentials.EnvAWS{}, &credentials.IAM{}
	file := &credentials.FileAWSCredentials{Filename: o.CredentialsFile, Profile: o.Profile}
	source := o.Credentials
	if source == FromChain && o.AccessKey != "" {
		source = FromOptions
	}
	switch source {
	case Anonymous:
		k.creds, k.fixed = credentials.NewStatic("", "", "", credentials.SignatureAnonymous), true
		return k, nil
	case FromOptions:
		k.creds, k.fixed = credentials.New(static), true
	case FromEnvironment:
		k.creds = credentials.New(env)
	case FromFile:
		k.creds = credentials.New(file)
	case FromCloud:
		k.creds = credentials.New(cloud)
	case FromChain:
		k.creds = credentials.NewChainCredentials([]credentials.Provider{env, file, cloud})
	default:
		return nil, fmt.Errorf("credentials %q: want one of static, environment, file, iam, anonymous", source)
	}
	v, err := k.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("find credentials (%s): %w", sourceName(source), err)
	}
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return nil, fmt.Errorf("no credentials for the object store (%s): give an access key and a secret key, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials", sourceName(source))
	}
	return k, nil
}

func sourceName(s Source) string {
	if s == FromChain {
		return "options, environment, file, iam"
	}
	return string(s)
}

func (k *keys) get(ctx context.Context) (credentials.Value, error) {
	return k.creds.GetWithContext(&credentials.CredContext{Client: k.client, Context: ctx})
}

// renewed looks for credentials that differ from the refused ones, and reports whether
// there are any.
func (k *keys) renewed(ctx context.Context, refused credentials.Value) bool {
	if k.fixed {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now, err := k.get(ctx)
	if err != nil {
		return false
	}
	if sameKeys(now, refused) { // nobody has renewed them meanwhile
		if time.Since(k.last) < refreshPause {
			return false
		}
		k.last = time.Now()
		k.creds.Expire()
		if now, err = k.get(ctx); err != nil {
			return false
		}
	}
	return now.AccessKeyID != "" && !sameKeys(now, refused)
}

// sameKeys compares our own credentials, so the time that it takes reveals nothing to
// others.
func sameKeys(a, b credentials.Value) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey == b.SecretAccessKey && a.SessionToken == b.SessionToken
}
