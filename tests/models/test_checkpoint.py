"""Faulty model folders: one line says what is wrong, and nothing that they bring along is run."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from referee.rescoring import load_scorers
from resispec.errors import InvalidInput
from resispec.models import TransformersModel, features_of, load_pair
from tests.models.toy_architectures import made, own_logits
from tests.toys import MakesFolder, save_tiny_pair


def edited(name="config.json", **changes):
    """A change of one of the folder's JSON files."""

    def change(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))

    return change


def pickled(*extra):
    """A change of the folder's weights into a pickle, of tensors and what a trap brings."""

    def change(folder):
        weights = load_file(folder / "model.safetensors")
        traps = {f"trap{index}": make(folder.parent / "trap") for index, make in enumerate(extra)}
        torch.save(weights | traps, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()

    return change


def with_weights(**weights):
    """A change of the folder's weights by more of them; a dot of a name is two underscores here."""

    def change(folder, place="model.safetensors"):
        kept = load_file(folder / place)
        added = {name.replace("__", "."): weight for name, weight in weights.items()}
        save_file(kept | added, folder / place, metadata={"format": "pt"})

    return change


def with_shards(folder):
    """A newer training run in shards beside the older one in a file."""
    shard = "model-00001-of-00001.safetensors"
    shutil.copy(folder / "model.safetensors", folder / shard)
    index = {"weight_map": dict.fromkeys(load_file(folder / shard), shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def truncated(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def written(name, content):
    return lambda folder: (folder / name).write_bytes(content)


OWN_CODE = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
NEVER_RUN = "needs code of its own .auto_map in {}.json., which is never run"
MODEL_FAULTS = {
    "weights cut off": (
        truncated("model.safetensors", 3000),
        "SafetensorError: .*not fully covered",
    ),
    "more than tensors": (
        pickled(MakesFolder),
        "one that holds more than tensors; none of it was run",
    ),
    "no pickle": (
        lambda folder: [pickled()(folder), written("pytorch_model.bin", b"weights")(folder)],
        "a damaged pickle",
    ),
    "no configuration": (without("config.json"), "config.json|model_type"),
    "a list for a configuration": (written("config.json", b"[]"), "cannot be loaded: ."),
    "other sizes": (
        edited(hidden_size=64),
        r"lm_head.weight is \(64, 32\) in the .* \(64, 64\) by",
    ),
    "more layers": (
        edited(num_hidden_layers=3),
        "does not fit the weights: they lack model.layers.2",
    ),
    "fewer layers": (edited(num_hidden_layers=1), "the weights: they have besides model.layers.1"),
    "biases that config.json does not tell": (
        with_weights(model__layers__0__self_attn__q_proj__bias=torch.ones(32)),
        "they have besides model.layers.0.self_attn.q_proj.bias",
    ),
    "a bias of the output layer": (
        with_weights(lm_head__bias=torch.ones(64)),
        "the weights: they have besides lm_head.bias",
    ),
    "an output layer that config.json ties": (
        edited(tie_word_embeddings=True),
        "by tie_word_embeddings there is none of its own for lm_head.weight",
    ),
    "a file and shards": (
        with_shards,
        "in model.safetensors, and by model.safetensors.index.json in model-00001-of-00001.safet",
    ),
    "an adapter": (written("adapter_config.json", b"{}"), "adapter.*is not read; merge it into"),
    "quantised by ModelOpt": (
        written("hf_quant_config.json", b"{}"),
        "weights are quantised; allowed: weights in",
    ),
    "a size in words": (edited(hidden_size="many"), "expected int, got str .value: 'many'"),
    "own code": (edited(auto_map=OWN_CODE), NEVER_RUN.format("config")),
    "an encoder-decoder": (
        edited(is_encoder_decoder=True, model_type="bart"),
        "is an encoder-decoder; al",
    ),
    "quantised": (
        edited(quantization_config={"bits": 4}),
        "weights are quantised; allowed: weights in",
    ),
    "a tokenizer's own code": (
        edited("tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", None]}),
        NEVER_RUN.format("tokenizer_config"),
    ),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json"),
        "there is none; .* tokenizer.json",
    ),
    "half a tokenizer": (
        truncated("tokenizer.json", 100),
        "tokenizer of model .* cannot be loaded: .+",
    ),
    "sentencepiece alone": (
        lambda folder: [(folder / "tokenizer.json").unlink(), (folder / "tokenizer.model").touch()],
        "pip install sentencepiece protobuf",
    ),
}


@pytest.fixture(scope="module")
def good_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_tiny_pair(folder)
    own_code = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    (folder / "target" / "own.py").write_text(own_code)
    return folder / "target"


@pytest.mark.parametrize("name", MODEL_FAULTS)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    good_folder, tmp_path, name, monkeypatch, capfd
):
    """Nothing is asked, nothing of the folder is run, and no table is printed beside the line."""
    change, message = MODEL_FAULTS[name]
    folder = tmp_path / "model"
    shutil.copytree(good_folder, folder)
    change(folder)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    monkeypatch.setattr("resispec.models.checkpoint.is_sentencepiece_available", lambda: False)
    with pytest.raises(InvalidInput, match=message) as caught:
        load_pair(str(folder), None)
    line = str(caught.value)
    assert (
        "\n" not in line
        and f"model {folder} cannot be loaded: " in line
        and not line.endswith(": ")
    )
    assert len(line) < 400
    assert not (tmp_path / "trap").exists() and not (folder / "ran").exists()
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_folder_loads_in_the_precision_that_is_asked_for(good_folder, tmp_path):
    for dtype in (torch.float32, torch.bfloat16):
        pair = load_pair(str(good_folder), None, dtype=str(dtype).removeprefix("torch."))
        assert (
            pair.target.module.dtype == dtype and pair.target.context == 256 and pair.draft is None
        )
        assert pair.tokenizer.decode(pair.tokenizer.encode("abc def")) == "abc def"
    missing = str(tmp_path / "nothing")
    for options, message in (
        ({"target": missing}, f"model folder {missing} does not exist"),
        ({"target": "owner/unreachable"}, "ways out"),
        ({"dtype": "int2"}, "unknown dtype 'int2'; allowed: float32, bfloat16, .*, int8, int4"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used; this machine has cpu"),
    ):
        with pytest.raises(InvalidInput, match=f"^.*{message}.*$"):
            load_pair(**{"target": str(good_folder), "draft": None, **options})


def test_a_model_that_reads_images_loads_where_there_is_none_for_text_alone(good_folder, tmp_path):
    """As Mistral Small 3.1, a target of conf/pair."""
    module = made("Mistral 3")
    shutil.copytree(good_folder, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink(missing_ok=True)
    module.save_pretrained(tmp_path / "model")
    target = load_pair(str(tmp_path / "model"), None).target
    tokens = [1, 2, 3]
    assert torch.equal(own_logits(target.module, tokens), own_logits(module, tokens))


def test_weights_in_files_that_hold_the_same_are_read(good_folder, tmp_path, recwarn):
    """An index may name the one file, as MLX writes it, or files that are gone.

    A pickle may lie beside; a warning says which of the two is read.
    """
    shutil.copytree(good_folder, folder := tmp_path / "model")
    index = folder / "model.safetensors.index.json"
    for shard in ("model.safetensors", "model-00001-of-00002.safetensors"):
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
        load_pair(str(folder), None)
    assert not [warned for warned in recwarn if "is read" in str(warned.message)]
    torch.save({}, folder / "pytorch_model.bin")
    line = r"has model.safetensors and pytorch_model.bin; model.safetensors is read$"
    with pytest.warns(UserWarning, match=line):
        load_pair(str(folder), None)


def test_a_window_that_no_layer_of_a_llama_reads_is_not_there(good_folder, tmp_path):
    """Defect: transformers' cache dropped rows beyond it: a text in pieces had another law."""
    shutil.copytree(good_folder, folder := tmp_path / "model")
    edited(sliding_window=3, use_sliding_window=False)(folder)
    (scorer,) = load_scorers([str(folder)], "cpu")
    tokens = torch.arange(1, 13)[None]
    (_, whole), (_, piece) = *scorer.pieces(tokens, [0, 12]), [*scorer.pieces(tokens, [8, 12])][0]
    assert (whole[:, 8:] - piece).abs().max() < 1e-3 * whole.abs().max()
    target = load_pair(str(folder), None).target
    assert (target.head(features_of(target, tokens[0].tolist())) - whole[0]).abs().max() < 1e-3
    target.module.config.sliding_window = 3
    with pytest.raises(InvalidInput, match="sliding_window is 3, which no layer of a llama reads"):
        TransformersModel(target.module)


def test_a_soft_cap_of_attention_is_read_eagerly(good_folder, tmp_path):
    """The sdpa of some versions of transformers leaves it out, which is another model."""
    shutil.copytree(good_folder, folder := tmp_path / "model")
    edited(attn_logit_softcapping=50.0)(folder)
    module = load_pair(str(folder), None).target.module
    assert module.config._attn_implementation == "eager"


def test_a_folder_that_is_named_like_a_model_on_the_hub_has_no_revision(good_folder, monkeypatch):
    monkeypatch.chdir(good_folder.parent.parent)
    name = f"{good_folder.parent.name}/{good_folder.name}"
    with pytest.warns(UserWarning, match=f"{name} is a folder here; revision v1.0 is not looked"):
        load_pair(name, None, target_revision="v1.0")
    with warnings.catch_warnings():  # as of a pinned pair
        warnings.simplefilter("error")
        load_pair(f"./{name}", None, target_revision="v1.0")


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_every_layer_of_another_kind_is_accounted_for(good_folder, tmp_path, prefix):
    """Masks that old files of GPT-2 hold are no weights; names may begin at the body."""
    shutil.copytree(good_folder, folder := tmp_path / "model")
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / file).unlink()
    made("GPT2").save_pretrained(folder)
    weights = {
        name.replace("transformer.", prefix): weight
        for name, weight in load_file(folder / "model.safetensors").items()
    }
    weights[f"{prefix}h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    weights[f"{prefix}h.0.attn.masked_bias"] = torch.tensor(-1e4)
    weights["v_head.weight"] = torch.ones(1, 32)  # of a trainer, in no law
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_pair(str(folder), None)
    edited(n_layer=3)(folder)
    with pytest.raises(
        InvalidInput, match=rf"they have besides {prefix}h\.3\.attn\.c_attn\.weight"
    ):
        load_pair(str(folder), None)
