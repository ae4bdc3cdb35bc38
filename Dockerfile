# An image to train and serve with; on a GPU: docker run --gpus all. See docs/gpu-setup.md.
#   docker build -t torchrl_gpu .
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY torchrl_gpu torchrl_gpu
RUN pip install -c constraints.txt pip setuptools \
    && pip install -c constraints.txt --no-build-isolation '.[cloud,export,stream,video]'

FROM python:3.12-slim-bookworm
# The kernels for a CPU are compiled at first use, and Triton compiles its launchers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 trainer
COPY --from=build /opt/venv /opt/venv
# The last two are what NVIDIA's container runtime asks for; `video` is for NVENC.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 1000
WORKDIR /home/trainer
CMD ["torchrl-gpu", "doctor"]
