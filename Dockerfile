# evs serve in a container. CPU wheels unless told otherwise:
#   docker build --build-arg TORCH_INDEX= --build-arg EXTRAS='[cuda]' .
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models \
    EVS_HOST=0.0.0.0

WORKDIR /srv/evserve

# Dependencies in a layer of their own, with what is compiled: it changes with pyproject.toml, not with the code.
COPY pyproject.toml README.md LICENSE ./
COPY runner/native runner/native
COPY attention/native attention/native
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
    && mkdir app vision evs \
    && touch app/__init__.py runner/__init__.py vision/__init__.py evs/__init__.py attention/__init__.py \
    && pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -e ".$EXTRAS" \
    && apt-get purge -y -qq --auto-remove gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

COPY . .

RUN useradd --system --uid 10001 --create-home evs \
    && install -d -o evs -g evs /models /media
USER evs

# /models: the Hugging Face cache. /media: files that may be named as file: URLs, once allowed.
VOLUME ["/models", "/media"]
EXPOSE 8000

HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]

ENTRYPOINT ["evs", "serve"]
CMD ["demo"]
