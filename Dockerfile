# One image for every process; docker-compose.yml says which one runs.
FROM python:3.12-slim

WORKDIR /app
COPY pyproject.toml requirements.lock README.md ./
COPY delegation delegation
COPY workers workers
COPY web web
COPY examples examples
RUN pip install --no-cache-dir -c requirements.lock '.[demo]' \
    && useradd --system --no-create-home delegation
USER delegation
