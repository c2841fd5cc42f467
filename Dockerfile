# One image for every process; docker-compose.yml says which one runs.
FROM python:3.12-slim

WORKDIR /app
COPY requirements-image.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements-image.lock
COPY pyproject.toml README.md ./
COPY delegation delegation
COPY workers workers
COPY web web
COPY examples examples
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
    && useradd --system --no-create-home delegation
USER delegation
