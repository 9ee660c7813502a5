package node

import (
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/agent/kubelet"
)

func credentialProviderCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "credential-provider",
		Short: "Give kubelet the token of a pod's service account as its password for the registry",
		Long: `Answer one request of kubelet, which starts this program as an image credential provider. The
answer has the token of the pod's service account as the password for the image's registry.
The registry must have the cluster as an OIDC issuer, and rules for its namespaces. Pods then
need no pull secrets.

The request is read from standard input, and the answer is written to standard output. The
command needs version v1 of credentialprovider.kubelet.k8s.io, and tokenAttributes in
kubelet's configuration.`,
		Example: `  slipway credential-provider`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return kubelet.ProvideCredential(cmd.InOrStdin(), cmd.OutOrStdout(), time.Now())
		},
	}
}
