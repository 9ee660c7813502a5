package yamlfile

// note replaces the tags of a field of a struct of another package.
type note struct {
	doc, example, min string
	enum              []string
	secret            bool
}

// borrowed describes, by type and key, the sections whose structs belong to other
// packages, which use them.
var borrowed = map[string]note{
	"auth.Config.htpasswd":                {doc: "User names and passwords from a file."},
	"auth.HTPasswdConfig.realm":           {doc: "Name that clients show when they ask for a password. Empty means slipway."},
	"auth.HTPasswdConfig.path":            {doc: "File of bcrypt entries, made by htpasswd -B. It is read again when it changes.", example: "/etc/slipway/htpasswd"},
	"auth.Config.token":                   {doc: "The built-in token service, or an external one that rootcertbundle or jwks describes."},
	"auth.TokenConfig.builtin":            {doc: "Switches the built-in service on or off. Unset: off when an external one is described."},
	"auth.TokenConfig.realm":              {doc: "URL where clients fetch tokens. Needed for an external service; empty means /token below http.host, or below the host that a request names."},
	"auth.TokenConfig.service":            {doc: "Audience of the tokens. Needed for an external service; empty means slipway."},
	"auth.TokenConfig.issuer":             {doc: "Issuer of the tokens. Needed for an external service; empty means slipway."},
	"auth.TokenConfig.key":                {doc: "PEM file of the built-in service's private keys: the first signs, all verify. It is made if it does not exist. Replicas must share it."},
	"auth.TokenConfig.expiration":         {doc: "Lifetime of the built-in service's access tokens, from 1m to 24h. 0 means 5m."},
	"auth.TokenConfig.refresh_expiration": {doc: "Lifetime of its refresh tokens, which Docker calls identity tokens. 0 issues none: docker login would store such a token in place of the password, and neither pull secrets nor most other tools could use it.", example: "720h"},
	"auth.TokenConfig.rootcertbundle":     {doc: "PEM file of certificates: of the external service's keys, or of authorities that certify them."},
	"auth.TokenConfig.jwks":               {doc: "File of the external service's public keys."},
	"auth.TokenConfig.signingalgorithms":  {doc: "Algorithms accepted from the external service. Empty means RS, PS, ES (256, 384, 512) and EdDSA."},
	"auth.TokenConfig.autoredirect":       {doc: "Makes the external service's realm from the request's host and autoredirectpath."},
	"auth.TokenConfig.autoredirectpath":   {doc: "Path for autoredirect. Empty means /auth/token."},
	"auth.Config.oidc":                    {doc: "OpenID Connect issuers whose tokens are accepted."},
	"auth.OIDCConfig.name":                {doc: "Name of the issuer in subjects, oidc:<name>:<user>. Empty means the issuer's host.", example: "corp"},
	"auth.OIDCConfig.issuer":              {doc: "URL of the issuer, https but for loopback.", example: "https://id.example.com"},
	"auth.OIDCConfig.audience":            {doc: "Value that a token's aud must have, unless it has one of audiences. At least one of the two keys is needed.", example: "registry"},
	"auth.OIDCConfig.audiences":           {doc: "More values that aud may have."},
	"auth.OIDCConfig.ca":                  {doc: "PEM file of the authorities that certify the issuer. Empty means the system's.", example: "/etc/slipway/cluster-ca.crt"},
	"auth.OIDCConfig.jwks":                {doc: "File of the issuer's public keys, for an issuer that the server cannot reach. The issuer is then never contacted. Excludes ca and client_id."},
	"auth.OIDCConfig.username_claim":      {doc: "Claim with the name of the user. Empty means sub. A name with a slash in front is a JSON pointer, such as /kubernetes.io/namespace; also in the next two."},
	"auth.OIDCConfig.groups_claim":        {doc: "Claim with the groups of the user. Empty means groups."},
	"auth.OIDCConfig.required_claims":     {doc: "Claims that a token must have with these values."},
	"auth.OIDCConfig.client_id":           {doc: "Client id for logins at the web page. Empty: nobody can log in through this issuer. Register the client at the issuer with the redirect URI /ui/login/done below http.host.", example: "slipway"},
	"auth.OIDCConfig.client_secret":       {doc: "Secret of the client. Empty for a public client.", example: "${file:/run/secrets/oidc}", secret: true},
	"auth.OIDCConfig.scopes":              {doc: "Scopes to request beside openid, such as groups or email."},
	"auth.Config.mtls":                    {doc: "Makes users of verified client certificates. Their organizational units are the groups."},
	"auth.MTLSConfig.subject":             {doc: "Which name of the certificate is the user: cn, uri or dns. Empty means the first of these that the certificate has."},
	"auth.Config.robots":                  {doc: "Whether robots may use API tokens, which slipway token create makes. Unset: if users have passwords or OIDC, or there is a token service. true also without these."},
	"auth.Config.access":                  {doc: "Rules of access. A request is allowed if any rule allows it. Without rules, every authenticated user may do everything."},
	"auth.Rule.repositories":              {doc: "Patterns of repositories: * stands for any characters within a path segment, ? for one, the segment ** for any number of segments.", example: "team/**"},
	"auth.Rule.subjects":                  {doc: "Who may do it: anonymous, * for every authenticated user, a user's name, oidc:<name>:<user>, group:<name>:<group> of an OIDC issuer, group:mtls:<group> of a certificate. group:<group> is enough if there is only one issuer or only certificates.", example: "group:team"},
	"auth.Rule.actions":                   {doc: "What: pull, push, delete, * for these three; volume for a credential to read the storage of volumes, clone with volume for one that may make clones there, never anonymous; catalog, admin.", example: "pull"},
	"auth.Config.max_failures_per_minute": {doc: "Wrong passwords an address may send per minute before it is answered 429. 0 means 20; negative means no limit."},

	"notify.Endpoint.name":              {doc: "Name in logs and metrics.", example: "listener"},
	"notify.Endpoint.disabled":          {doc: "True sends nothing."},
	"notify.Endpoint.url":               {doc: "URL that events are posted to.", example: "https://listener.example.com/events"},
	"notify.Endpoint.headers":           {doc: "Headers added to each request, each with a list of values.", example: "Authorization: [\"Bearer ${file:/run/secrets/listener}\"]", secret: true},
	"notify.Endpoint.timeout":           {doc: "Longest time a request may take. 0 means 5s.", min: "0s"},
	"notify.Endpoint.threshold":         {doc: "Number of deliveries in a row that may fail and are retried at once. 0 means 10.", min: "0"},
	"notify.Endpoint.backoff":           {doc: "First pause after so many failures; each further pause is twice as long. 0 means 1s.", min: "0s"},
	"notify.Endpoint.ignoredmediatypes": {doc: "Deprecated: write ignore.mediatypes."},
	"notify.Endpoint.ignore":            {doc: "Events that are not sent."},
	"notify.Endpoint.format":            {doc: "docker, the envelope of Distribution, or cloudevents. Empty means docker.", enum: []string{"", "docker", "cloudevents"}},
	"notify.Endpoint.secret":            {doc: "Signs each body: the header X-Slipway-Signature is sha256= and the HMAC-SHA256 of the body in hex. Empty signs nothing.", example: "${file:/run/secrets/webhook}", secret: true},
	"notify.Ignore.mediatypes":          {doc: "Media types of targets whose events are not sent."},
	"notify.Ignore.actions":             {doc: "Actions whose events are not sent: push, pull, mount, delete."},
}
