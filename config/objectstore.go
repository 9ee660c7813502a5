package config

// S3 configures the s3 driver: Amazon S3, and other services with its protocol (Ceph RGW,
// MinIO, versitygw, Google Cloud Storage with an interoperability key).
type S3 struct {
	AccessKey      string `yaml:"accesskey" doc:"Name of the key. Empty takes the credentials of the environment: the AWS_ variables, the shared credentials file, or the role of the machine or pod."`
	SecretKey      Secret `yaml:"secretkey" doc:"The key's secret." example:"${file:/run/secrets/s3}"`
	SessionToken   Secret `yaml:"sessiontoken" doc:"Token of temporary credentials."`
	Region         string `yaml:"region" doc:"Region of the bucket. Empty asks Amazon, and means us-east-1 with a regionendpoint." example:"eu-central-1"`
	RegionEndpoint string `yaml:"regionendpoint" doc:"Address of a server other than Amazon's, with http:// or https://, or HOST:PORT, for which secure decides." example:"https://s3.example.com"`
	ForcePathStyle bool   `yaml:"forcepathstyle" doc:"Puts the bucket into the path of URLs and not into the host name. With a regionendpoint this is always done."`
	Bucket         string `yaml:"bucket" doc:"Name of the bucket, which must exist." example:"images"`
	RootDirectory  string `yaml:"rootdirectory" doc:"Prefix of all keys in the bucket. Empty means none." example:"registry"`
	Encrypt        bool   `yaml:"encrypt" doc:"Makes the server encrypt what it stores."`
	KeyID          string `yaml:"keyid" doc:"Key of the key management service to encrypt with. Empty means the bucket's own key."`
	Secure         bool   `yaml:"secure" default:"true" doc:"Speaks TLS with a regionendpoint that does not say http:// or https://."`
	CAFile         string `yaml:"cafile" doc:"PEM file of authorities that are trusted beside the system's." example:"/etc/slipway/ca.pem"`
	SkipVerify     bool   `yaml:"skipverify" doc:"Accepts any certificate. Anybody between this server and the storage can then read and change everything."`
	ChunkSize      Size   `yaml:"chunksize" default:"16MiB" min:"5MiB" doc:"Size of the parts in which blobs are uploaded. A blob has at most 10000 parts; for blobs that would need more, the parts grow. An upload takes up to three parts of memory."`
	StorageClass   string `yaml:"storageclass" doc:"Storage class of new objects. Empty, and NONE, leave it to the bucket." example:"STANDARD"`
}

// Swift configures the swift driver: OpenStack object storage.
type Swift struct {
	AuthURL            string `yaml:"authurl" doc:"Address where tokens are fetched; /v1.0, /v2.0 or /v3 in it says the version." example:"https://keystone.example.com:5000/v3"`
	Username           string `yaml:"username" doc:"Name of the user."`
	Password           Secret `yaml:"password" doc:"The user's password." example:"${file:/run/secrets/swift}"`
	Region             string `yaml:"region" doc:"Region. Empty takes the first one offered."`
	Container          string `yaml:"container" doc:"Name of the container. It is made if it does not exist." example:"images"`
	Tenant             string `yaml:"tenant" doc:"Name of the project."`
	TenantID           string `yaml:"tenantid" doc:"Id of the project."`
	TenantDomain       string `yaml:"tenantdomain" doc:"Name of the project's domain. Empty means the user's."`
	TenantDomainID     string `yaml:"tenantdomainid" doc:"Id of the project's domain."`
	Domain             string `yaml:"domain" doc:"Name of the user's domain. Only with version 3."`
	DomainID           string `yaml:"domainid" doc:"Id of the user's domain. Only with version 3."`
	TrustID            string `yaml:"trustid" doc:"Id of a trust. Only with version 3."`
	CAFile             string `yaml:"cafile" doc:"PEM file of authorities that are trusted beside the system's."`
	InsecureSkipVerify bool   `yaml:"insecureskipverify" doc:"Accepts any certificate. Anybody between this server and the storage can then read and change everything."`
	ChunkSize          Size   `yaml:"chunksize" default:"20MiB" min:"1MiB" doc:"Size of the segments into which larger blobs are split."`
	Prefix             string `yaml:"prefix" doc:"Prefix of all names in the container. Empty means none." example:"registry"`
	SecretKey          Secret `yaml:"secretkey" doc:"Key that temporary URLs are signed with. Empty takes the one that the container or the account has, and gives the container one if neither has."`
	AccessKey          Secret `yaml:"accesskey" doc:"Accepted because Distribution's files may have it, for a cloud that no longer exists. It has no effect here."`
	AuthVersion        int    `yaml:"authversion" min:"0" doc:"Version of the authentication: 1, 2 or 3. 0 takes it from authurl."`
	EndpointType       string `yaml:"endpointtype" default:"public" enum:"public|internal|admin" doc:"Which of the addresses the service offers is used."`
}

// SharedCatalog says where the catalogue is that several servers share.
type SharedCatalog struct {
	Postgres    Secret `yaml:"postgres" doc:"Connection string of a PostgreSQL database, as a URL (postgres://USER@HOST/DATABASE) or in the words of libpq. Several servers may share it. Empty keeps the catalogue in the data directory, for this server alone." example:"${file:/run/secrets/postgres}"`
	Connections int    `yaml:"connections" default:"8" min:"2" doc:"Limit of simultaneous connections to the database for reading."`
}
