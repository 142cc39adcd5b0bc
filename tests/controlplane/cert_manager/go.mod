// cert-manager's own CRDs, for the walk in which the webhooks' certificate is left to it.
module shoal.example/cert-manager

go 1.26.0

require github.com/cert-manager/cert-manager v1.18.2 // indirect
