#!/bin/sh
# The API by hand. Start a server first: mtplx serve
# Usage: curl.sh [BASE_URL [MODEL]], where the base URL ends in /v1: sh examples/curl.sh http://127.0.0.1:8000/v1
set -eu
base_url="${1:-http://127.0.0.1:8000/v1}"
model="${2:-smollm2-135m-instruct}"

post() {
    curl --fail-with-body --silent --show-error --no-buffer "$base_url/$1" \
        --header "Content-Type: application/json" --data "$2"
    echo
}

curl --fail-with-body --silent --show-error "$base_url/models"
echo
post chat/completions '{"model": "'"$model"'", "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 20, "seed": 7}'
post completions '{"model": "'"$model"'", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "stream": true}'
