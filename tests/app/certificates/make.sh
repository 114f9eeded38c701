#!/usr/bin/env bash
# Makes the certificates that tests of fetching over TLS use: an authority nobody trusts but those tests, and a server
# named media.test. The authority's key is thrown away, so nothing else can be signed with it.
set -euo pipefail
cd "$(dirname "$0")"
key=$(mktemp)
trap 'rm -f "$key" request.pem authority.srl' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$key" -out authority.pem -days 36500 \
    -subj "/CN=EVServe test authority" -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out request.pem -subj "/CN=media.test"
openssl x509 -req -in request.pem -CA authority.pem -CAkey "$key" -CAcreateserial -out server.pem -days 36500 \
    -extfile <(printf 'subjectAltName=DNS:media.test\nbasicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n')
