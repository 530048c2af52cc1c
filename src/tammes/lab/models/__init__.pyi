from tammes.lab.models.backbone import AroundNeck as AroundNeck
from tammes.lab.models.backbone import Backbone as Backbone
from tammes.lab.models.backbone import embed as embed
from tammes.lab.models.builder import MODELS as MODELS
from tammes.lab.models.builder import build as build
