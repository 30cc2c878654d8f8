#!/bin/sh
# Certificates and keys of a federation: make-certificates.sh DIRECTORY LINK-NAME DEVICE...
# Makes a certificate authority (ca.crt, and ca.key: keep that offline), a certificate for the SuperLink and its gate
# (server.pem, server.key) valid for LINK-NAME and this host, and a key for each device. Only the owner can read the
# files, except for certificates and public keys.
set -eu
umask 077
directory=$1 link=$2
shift 2
mkdir -p "$directory"
cd "$directory"
if [ ! -e ca.key ]; then
  openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -keyout ca.key -out ca.crt -subj "/CN=fedfuse federation" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2> /dev/null
fi
if [ ! -e server.key ]; then
  openssl req -newkey rsa:3072 -nodes -keyout server.key -out server.csr -subj "/CN=$link" 2> /dev/null
  printf "subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n" \
    "$link" > server.ext
  openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext \
    -out server.pem 2> /dev/null
  rm server.csr server.ext
fi
for device in "$@"; do
  [ -e "$device" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "$device" -f "$device"
done
chmod 644 ca.crt server.pem
