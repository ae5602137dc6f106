#!/usr/bin/env bash
# Builds a Kubernetes 1.20 control plane for the tests from Debian bookworm's source package:
# `build.sh FOLDER`. Takes half an hour on two cores. etcd is Debian's binary package.
set -euo pipefail
folder=$(realpath -m "$1")
apt-get install -y golang-1.19-go etcd-server dpkg-dev
work=$(mktemp -d) && cd "$work"
apt-get source --download-only kubernetes=1.20.5+really1.20.2-1.1+deb12u1
mkdir -p go/src/k8s.io && tar xzf kubernetes_*.orig.tar.gz
mv kubernetes-1.20.2 go/src/k8s.io/kubernetes && cd go/src/k8s.io/kubernetes
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$work/go CGO_ENABLED=0 GO111MODULE=off
packages=$(grep -rl --include='*.go' -E '\+k8s:openapi-gen=' . |
    grep -vE '/testdata/|_test.go|^./_output|^./vendor/|code-generator|sample-|^./test/|gengo' |
    xargs -n1 dirname | sort -u |
    sed -e 's#^\./staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^\./#k8s.io/kubernetes/#' | paste -sd,)
go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen -i "$packages" \
    --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi -r openapi_report.txt
mkdir -p "$folder"
for name in kube-apiserver kube-controller-manager kube-scheduler; do
    go build -p 2 -ldflags "-s -w" -o "$folder/$name" "k8s.io/kubernetes/cmd/$name"
done
