# The workbench, as `make app` starts it:
#
#     docker build --tag dcinterp .
#     docker run --rm --publish 127.0.0.1:8501:8501 dcinterp
#     docker run --rm --publish 127.0.0.1:8501:8501 --volume "$PWD/my-model:/models/mine:ro" dcinterp /models/mine
#
# then open http://127.0.0.1:8501. The app runs the models of whoever reaches it, so publish it to this machine only.
FROM python:3.11-slim

# The CPU builds of PyTorch; --build-arg TORCH_INDEX= takes the default ones, with CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /opt/dcinterp
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY dcinterp dcinterp
COPY synthetic_tasks synthetic_tasks
COPY app app
COPY configs configs
COPY experiments experiments
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} . \
    && rm -rf /opt/dcinterp \
    && useradd --create-home researcher

USER researcher
WORKDIR /models
# Inside a container the outside is another machine; what may reach it, `docker run --publish` says.
ENV STREAMLIT_SERVER_ADDRESS=0.0.0.0
EXPOSE 8501
ENTRYPOINT ["dcinterp", "app", "--no-browser", "--port", "8501"]
