package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"example.org/slipway/agent/registries"
)

const (
	// credentialAPI is the version of kubelet's protocol that carries tokens of
	// service accounts.
	credentialAPI = "credentialprovider.kubelet.k8s.io/v1"
	// credentialMargin is how long before its expiry a token is no longer given out. It
	// lets the pull that uses the token finish.
	credentialMargin = time.Minute
	// maxCredentialRequest bounds how many bytes are read from kubelet.
	maxCredentialRequest = 1 << 20
)

// credentialRequest is what kubelet writes to a credential provider.
type credentialRequest struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Image      string `json:"image"`
	// ServiceAccountToken is a token of the pod's account. It is "" unless
	// tokenAttributes request one.
	ServiceAccountToken string `json:"serviceAccountToken"`
}

// credentialResponse is what kubelet reads.
type credentialResponse struct {
	Kind          string                   `json:"kind"`
	APIVersion    string                   `json:"apiVersion"`
	CacheKeyType  string                   `json:"cacheKeyType"`
	CacheDuration string                   `json:"cacheDuration"`
	Auth          map[string]kubeletSecret `json:"auth"`
}

// kubeletSecret is the user and password for a registry.
type kubeletSecret struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// ProvideCredential answers one request of kubelet's credential-provider protocol. The
// token of the pod's service account becomes the password for the image's registry, which
// has the cluster among its OIDC issuers. No network request is made.
//
// An error is for an administrator to fix. kubelet logs it, and pulls without a
// credential.
func ProvideCredential(r io.Reader, w io.Writer, now time.Time) error {
	var req credentialRequest
	if err := json.NewDecoder(io.LimitReader(r, maxCredentialRequest)).Decode(&req); err != nil {
		return fmt.Errorf("read the request of kubelet: %w", err)
	}
	if req.Kind != "CredentialProviderRequest" || req.APIVersion != credentialAPI {
		return fmt.Errorf("the request is a %s of %s: set apiVersion: %s for this provider", req.Kind, req.APIVersion, credentialAPI)
	}
	if req.ServiceAccountToken == "" {
		return fmt.Errorf("kubelet sent no token of a service account for %s: set tokenAttributes for this provider", req.Image)
	}
	ref, err := registries.Parse(req.Image)
	if err != nil {
		return err
	}
	ends := registries.TokenEnd(req.ServiceAccountToken)
	if ends.IsZero() {
		return errors.New("what kubelet sent for the service account is not a token that expires")
	}
	return json.NewEncoder(w).Encode(credentialResponse{
		Kind: "CredentialProviderResponse", APIVersion: credentialAPI,
		CacheKeyType: "Registry", CacheDuration: max(ends.Sub(now)-credentialMargin, 0).Truncate(time.Second).String(),
		Auth: map[string]kubeletSecret{ref.Host: {Username: "kubernetes", Password: req.ServiceAccountToken}},
	})
}
